"""The coded words of RULER's frequent words: by rank, how often each, in a drawn order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from operator import mul
from random import Random
from string import ascii_lowercase

DOTS, LETTERS = "...", 6
PER_WORD = 50  # the tokens of a prompt for every word of the vocabulary
ORDERS = 1000  # that are drawn; the second or third has been enough
Written = Callable[[str], list[int]]  # the tokens of a text


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


def least(alpha: float) -> int:
    """Return of how many words on the fourth rank occurs more often than the fifth, and than once.

    The fifth has r = (4/5)^alpha times what the fourth has before both are rounded down: where
    that is k, r (k + 1) is k or less from k = r / (1 - r) = 1 / (1.25^alpha - 1) on.
    """
    from scipy.special import zeta

    fourth = max(2, math.ceil(1 / (1.25**alpha - 1)))
    words: float = fourth * 4**alpha * float(zeta(alpha))
    return math.ceil(words)


def size_of(tokens: int) -> int:
    """Return how many words the vocabulary of a text has."""
    return max(5, tokens // PER_WORD)


def fewest(written: Written, size: int, alpha: float, draws: Sequence[str]) -> int:
    """Return the tokens of the shortest text from ``size`` words, the most of all ``draws``."""
    often = [n for n in counts(least(alpha) - 1, size, alpha) if n]
    every = (vocabulary(len(often), Random(draw)) for draw in draws)
    return max(
        sum(n * len(written(f" {word}")) for n, word in zip(often, known, strict=True))
        for known in every
    )


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
        made = [written(every[0]), *(written(f" {word}") for word in every[1:])]
        if _most(known[1:4], every, made, space):
            return list(chain.from_iterable(made))[:space]
    raise ValueError(
        f"in {ORDERS} orders of a text of {space} tokens the cut left other words as frequent as "
        "the three asked for; give a longer length"
    )


def _most(asked: list[str], text: list[str], made: list[list[int]], space: int) -> bool:
    """Return whether, of the words that the cut leaves whole, those asked for are most frequent.

    What is left of the word that is cut counts as a word.
    """
    ends = accumulate(map(len, made))
    often = Counter(word for word, end in zip(text, ends, strict=False) if end <= space)
    others = [1, *(n for word, n in often.items() if word not in (DOTS, *asked))]
    return min(often[word] for word in asked) > max(others)
