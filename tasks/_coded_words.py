"""The coded words of RULER's frequent words: by rank, how often each, and how many are needed."""

from __future__ import annotations

import math
from random import Random
from string import ascii_lowercase

DOTS, LETTERS = "...", 6


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
