"""RULER's common words: the ten words that a numbered list has most often (arXiv:2404.06654).

After a short example, ten words occur 30 times among others that occur 3 times. Below 4096 tokens
they occur 6 times and the others once. A text of ``new`` tokens is scored by the share of the ten
words in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache, partial
from random import Random

from ropewalk.tasks._prompt import BETWEEN, Chat, around, continued, words
from ropewalk.tasks._retrieval import grade, score
from ropewalk.tasks.types import Count, Fact, Request, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 2
METRIC = "recall"
BEFORE = (
    "Below is a numbered list of words. In these words, some appear more often than others."
    " Memorize the ones that appear most often.\n"
)
AFTER = "\nQuestion: What are the 10 most common words in the above list?"
REPLY = " Answer: The top 10 words that appear most often in the list are:"
COMMON = 10
# From which length on: how often common words and others occur, and in the example, of how many.
OFTEN = {4096: ((30, 3), (10, 3), 40), 0: ((6, 1), (3, 1), 20)}
MOST_SHOWN = max(shown for *_, shown in OFTEN.values())


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    new: Count = 120,
    trials: Count = 25,
    chat: Chat = False,
) -> Iterator[Request]:
    """Yield ``trials`` lists of every length, of which only the last words are cut.

    Raises ValueError where a list cannot fit, or needs more words than there are.
    """
    known = words("noun", "adjective", "verb")
    written = cache(lambda text: continued(context, text))
    for length in lengths:
        often, few, shown = next(times for least, times in OFTEN.items() if length >= least)
        lists = []
        for trial in range(trials):
            draw = Random(f"{seed}/{trial}")
            sample = draw.sample(known, MOST_SHOWN)[:shown]  # of any length as many draws
            order = draw.sample(known, len(known))
            example = f"{BEFORE}{listed(repeated(sample, few, draw))}{AFTER}{REPLY}"
            before = f"{example} {listed(sample[:COMMON])}\n{BEFORE}"
            frame = around(context, before, AFTER, REPLY, new=new, chat=chat)
            lists.append((frame, order, partial(tokens_of, written, order, often, draw)))
        least = max(frame.taken + len(tokens(COMMON)) for frame, _, tokens in lists)
        for trial, (frame, order, tokens) in enumerate(lists):
            space = frame.room(length, least - frame.taken)
            facts: dict[str, Fact] = {"trial": trial, "answer": BETWEEN.join(order[:COMMON])}
            yield frame.request(f"trial {trial}", filled(tokens, len(order), space), facts)


def repeated(order: Sequence[str], often: tuple[int, int], draw: Random) -> list[str]:
    """Return the first ten words so often, the others so often, shuffled."""
    words = [*order[:COMMON]] * often[0] + [*order[COMMON:]] * often[1]
    draw.shuffle(words)
    return words


def listed(every: Sequence[str]) -> str:
    """Return words as a numbered list in one line."""
    return " ".join(f"{number}. {word}" for number, word in enumerate(every, 1))


def tokens_of(
    written: Callable[[str], list[int]],
    order: Sequence[str],
    often: tuple[int, int],
    draw: Random,
    count: int,
) -> list[int]:
    """Return the tokens of the list of the first ``count`` words; ``draw`` stays as it is."""
    chosen = repeated(order[:count], often, copy(draw))
    parts = [part for n, word in enumerate(chosen, 1) for part in (f" {n}.", f" {word}")]
    return [*written("1."), *(token for part in parts[1:] for token in written(part))]


def filled(tokens: Callable[[int], list[int]], known: int, space: int) -> list[int]:
    """Return ``space`` tokens of the list of the fewest words that fill them."""
    most = COMMON
    while most < known and len(tokens(most)) < space:
        most = min(2 * most, known)
    if space > (longest := len(tokens(most))):
        raise ValueError(f"a list of all words has {longest} of {space} tokens; give less length")
    place = bisect_left(range(COMMON, most), space, key=lambda n: len(tokens(n)))
    return tokens(COMMON + place)[:space]
