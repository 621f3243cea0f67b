"""RULER's frequent words: the three that a coded text has most often, by Zipf (arXiv:2404.06654).

The word of rank k occurs in proportion to k^-``alpha``; the first rank is dots, which do not count.
A text of ``new`` tokens is scored by the share of the three words in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from operator import mul
from random import Random
from string import ascii_lowercase

from tasks._prompt import around, continued
from tasks._retrieval import BETWEEN, FACTS, check_trials, grade, new_tokens, question, room, score
from tasks._types import Fact, Question, Source

__all__ = ["FACTS", "METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
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
DOTS, LETTERS, PER_WORD = "...", 6, 50  # the tokens of a prompt for every word of the vocabulary


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

    Raises ValueError where a text cannot fit, or for an alpha of 1 or less.
    """
    check_trials(trials)
    new = new_tokens("text", new)
    if not alpha > 1:
        message = f"alpha={alpha} is not above 1"
        raise ValueError(message)
    written = cache(lambda text: continued(source, text))
    frame = around(source, BEFORE, AFTER, REPLY, chat=chat)
    for length in lengths:
        space = room(length, frame, new)
        for trial in range(trials):
            draw = Random(f"{seed}/{trial}")
            known = vocabulary(max(5, (length - new) // PER_WORD), draw)
            sizes = [len(written(f" {word}")) for word in known]
            total, often = 1, [0]
            while sum(map(mul, often, sizes)) <= space:
                total += max(1, total // 64)
                often = counts(total, len(known), alpha)
            text = [word for word, count in zip(known, often, strict=True) for _ in range(count)]
            draw.shuffle(text)
            made = [*written(text[0]), *(t for word in text[1:] for t in written(f" {word}"))]
            facts: dict[str, Fact] = {"trial": trial, "answer": BETWEEN.join(known[1:4])}
            yield question(f"trial {trial}", length, frame, made[:space], facts, new)


def vocabulary(size: int, draw: Random) -> list[str]:
    """Return dots and words of random letters, each once, by their rank."""
    found = {DOTS: None}
    while len(found) < size:
        found["".join(draw.choices(ascii_lowercase, k=LETTERS))] = None
    return list(found)


def counts(total: int, size: int, alpha: float) -> list[int]:
    """Return how often the words of every rank occur, of about ``total``."""
    from scipy.special import zeta

    scale = total / float(zeta(alpha))
    return [int(scale * rank**-alpha) for rank in range(1, size + 1)]
