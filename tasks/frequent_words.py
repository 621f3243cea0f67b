"""RULER's frequent words: the three that a coded text has most often, by Zipf (arXiv:2404.06654).

The word of rank k occurs in proportion to k^-``alpha``; the first rank is dots, which do not count.
Differs from RULER, whose short texts may lack the words asked for: each of the three occurs more
often than every other word of the text, or the length is refused.
A text of ``new`` tokens is scored by the share of the three words in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, chain
from operator import mul
from random import Random

from tasks._coded_words import DOTS, counts, least, vocabulary
from tasks._prompt import around, continued
from tasks._retrieval import BETWEEN, FACTS, check_trials, grade, new_tokens, question, room, score
from tasks._types import Fact, Question, Source

__all__ = ["FACTS", "METRIC", "VERSION", "ask", "grade", "score"]
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
PER_WORD = 50  # the tokens of a prompt for every word of the vocabulary
MOST = 10  # of alpha: the fourth word of a text occurs once in a million


def ask(
    source: Source,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    alpha: float = 2.0,
    new: int = 50,
    trials: int = 25,
    chat: bool = False,
) -> Iterator[Question]:
    """Yield ``trials`` coded texts of every length, of which only the last words are cut.

    An order of the words of which the cut spoils the counts is drawn again. Raises ValueError where
    a text cannot fit, naming the least length, or for an alpha that is not above 1 and at most 10.
    """
    check_trials(trials)
    new = new_tokens("text", new)
    if not 1 < alpha <= MOST:
        message = f"alpha={alpha} is not above 1 and {MOST} at the most"
        raise ValueError(message)
    written = cache(lambda text: continued(source, text))
    frame = around(source, BEFORE, AFTER, REPLY, chat=chat)
    for length in lengths:
        size = max(5, (length - new) // PER_WORD)
        fewest = [n for n in counts(least(alpha) - 1, size, alpha) if n]
        tokens = [
            sum(n * len(written(f" {word}")) for n, word in zip(fewest, known, strict=True))
            for known in (vocabulary(len(fewest), Random(f"{seed}/{t}")) for t in range(trials))
        ]
        space = room(length, frame, new, max(tokens) - 1)
        for trial in range(trials):
            draw = Random(f"{seed}/{trial}")
            known = vocabulary(size, draw)
            sizes = [len(written(f" {word}")) for word in known]
            total, often = 1, [0]
            while sum(map(mul, often, sizes)) <= space:
                total += max(1, total // 64)
                often = counts(total, len(known), alpha)
            text = [word for word, count in zip(known, often, strict=True) for _ in range(count)]
            made: list[list[int]] = []
            while not _most(known[1:4], text, made, space):
                draw.shuffle(text)
                made = [written(text[0]), *(written(f" {word}") for word in text[1:])]
            context = list(chain.from_iterable(made))[:space]
            facts: dict[str, Fact] = {"trial": trial, "answer": BETWEEN.join(known[1:4])}
            yield question(f"trial {trial}", length, frame, context, facts, new)


def _most(asked: list[str], text: list[str], made: list[list[int]], space: int) -> bool:
    """Return whether, of the words that the cut leaves whole, those asked for are most frequent.

    What is left of the word that is cut counts as a word.
    """
    ends = accumulate(map(len, made))
    often = Counter(word for word, end in zip(text, ends, strict=False) if end <= space)
    others = [1, *(n for word, n in often.items() if word not in (DOTS, *asked))]
    return min(often[word] for word in asked) > max(others)
