"""RULER's frequent words: the three that a coded text has most often, by Zipf (arXiv:2404.06654).

The word of rank k occurs in proportion to k^-``alpha``. The first rank is dots, which do not count.
A text of ``new`` tokens is scored by the share of the three words in it.

Differs from RULER, whose short texts may not contain the words of the answer: here each of the
three occurs more often than every other word of the text, or the length is rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain
from operator import mul
from random import Random
from string import ascii_lowercase
from typing import Annotated

from pydantic import Field

from ropewalk.tasks._prompt import BETWEEN, Chat, around, continued
from ropewalk.tasks._retrieval import grade, score
from ropewalk.tasks.types import Count, Fact, Request, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 2
METRIC = "recall"
BEFORE = (
    "Read the following coded text and track the frequency of each coded word."
    " Find the three most frequently appeared coded words. "
)
AFTER = (
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'."
    " What are the three most frequently appeared words in the above coded text?"
)
REPLY = " Answer: According to the coded text above, the three most frequently appeared words are:"
DOTS, LETTERS = "...", 6
PER_WORD = 50  # the tokens of a prompt for every word of the vocabulary
ORDERS = 1000  # that are drawn; the second or third has been enough
Written = Callable[[str], list[int]]  # the tokens of a text


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    alpha: Annotated[float, Field(gt=1, le=10)] = 2.0,
    new: Count = 50,
    trials: Count = 25,
    chat: Chat = False,
) -> Iterator[Request]:
    """Yield ``trials`` coded texts of every length, of which only the last words are cut.

    The words are drawn in another order if the cut changes the answer. Raises ValueError for a
    length that is too short for that.
    """
    written = cache(lambda text: continued(context, text))
    frame = around(context, BEFORE, AFTER, REPLY, new=new, chat=chat)
    for length in lengths:
        space, size = frame.room(length), max(5, (length - new) // PER_WORD)
        for trial in range(trials):
            draw = Random(f"{seed}/{trial}")
            known = vocabulary(size, draw)
            tokens = text(written, known, alpha, space, draw)
            facts: dict[str, Fact] = {"trial": trial, "answer": BETWEEN.join(known[1:4])}
            yield frame.request(f"trial {trial}", tokens, facts)


def vocabulary(size: int, draw: Random) -> list[str]:
    """Return dots and words of random letters, each once, by their rank."""
    ranked = {DOTS: None}
    while len(ranked) < size:
        ranked["".join(draw.choices(ascii_lowercase, k=LETTERS))] = None
    return list(ranked)


def counts(total: int, size: int, alpha: float) -> list[int]:
    """Return how often the words of every rank occur, of about ``total``."""
    from scipy.special import zeta

    scale = total / float(zeta(alpha))
    return [int(scale * rank**-alpha) for rank in range(1, size + 1)]


def text(written: Written, known: list[str], alpha: float, space: int, draw: Random) -> list[int]:
    """Return ``space`` tokens of words in a drawn order; raise ValueError where none is found."""
    sizes = [len(written(f" {word}")) for word in known]
    total, often = 1, [0]
    while sum(map(mul, often, sizes)) <= space:
        total += max(1, total // 64)
        often = counts(total, len(known), alpha)
    every = [word for word, count in zip(known, often, strict=True) for _ in range(count)]
    for _ in range(ORDERS):
        draw.shuffle(every)
        tokens = [written(every[0]), *(written(f" {word}") for word in every[1:])]
        if most_frequent(known[1:4], every, tokens, space):
            return list(chain.from_iterable(tokens))[:space]
    raise ValueError(
        f"in {ORDERS} orders of a text of {space} tokens the cut left other words as frequent as "
        "the three of the answer; give a longer length"
    )


def most_frequent(answer: list[str], text: list[str], tokens: list[list[int]], space: int) -> bool:
    """Return whether the answer's words are the most frequent ones that the cut leaves whole.

    The remaining part of the word that is cut counts as a word.
    """
    ends = accumulate(map(len, tokens))
    often = Counter(word for word, end in zip(text, ends, strict=False) if end <= space)
    others = [1, *(n for word, n in often.items() if word not in (DOTS, *answer))]
    return min(often[word] for word in answer) > max(others)
