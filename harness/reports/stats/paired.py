"""Two methods on the same documents or trials: how they differ and how surely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from tasks._intervals import LEVEL, Ratio, ratio

SURE = 1 - LEVEL  # below it a corrected probability is called sure
# A method that fails on one document in five is on none of 15 in 3.5 % of samples, on none of 10
# in 11 %: of fewer documents no test can tell the mean of such methods.
ENOUGH = 16


@dataclass(frozen=True)
class Difference:
    """One method less another over ``n`` units: value, interval, probability by chance alone.

    ``p`` is the larger of two: that of the mean, and of the exact sign test of how many units are
    ``lower`` and ``higher``. ``enough`` says whether ``n`` units allow to call anything sure.
    ``carrier`` is the one unit without which the difference changes by more than half. What n is
    too small to tell is None.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None
    n: int
    lower: int = 0
    higher: int = 0
    enough: bool = True
    carrier: str | None = None
    mean: Ratio | None = None


def of_means(
    one: Sequence[float], other: Sequence[float], weights: Sequence[float], *,
    level: float = LEVEL, names: Sequence[str] = (),
) -> Difference:  # fmt: skip
    """Compare sums over units of equal ``weights``: the difference of the weighted means."""
    apart = [a - b for a, b in zip(one, other, strict=True)]
    found = ratio(apart, weights)
    low, high = found.interval(level)
    lower, higher = sum(d < 0 for d in apart), sum(d > 0 for d in apart)
    p = found.p()
    if p is not None:
        p = max(p, signs(lower, higher)) if (lower > higher) == (found.value < 0) else 1.0
    return Difference(
        found.value, low, high, p, len(apart), lower, higher, len(apart) >= ENOUGH,
        _carrier(apart, weights, names), found,
    )  # fmt: skip


def of_shares(one: Sequence[float], other: Sequence[float], *, level: float = LEVEL) -> Difference:
    """Compare hits (0 or 1) in the same trials: the difference of their shares.

    Interval by Bonett and Price (2012), recommended by Fagerland, Lydersen and Laake (Statistics
    in Medicine 33, 2014); probability by the exact sign test, McNemar's. It needs no least
    number of trials: of fewer than 6 no outcome is significant.
    """
    gained = sum(a > b for a, b in zip(one, other, strict=True))
    lost = sum(a < b for a, b in zip(one, other, strict=True))
    n = len(one)
    if not n:
        return Difference(math.nan, None, None, None, 0)
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = float(special.ndtri((1 + level) / 2)) * math.sqrt(
        (up + down - (up - down) ** 2) / (n + 2)
    )
    low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    return Difference((gained - lost) / n, low, high, signs(gained, lost), n, lost, gained)


def signs(lower: int, higher: int) -> float:
    """Return the exact two-sided probability of so uneven a number of signs; ties count not."""
    return min(1.0, 2 * float(special.bdtr(min(lower, higher), lower + higher, 0.5)))


def holm(probabilities: Sequence[float | None]) -> list[float | None]:
    """Return the probabilities corrected for their number (Holm 1979); None stays and counts not.

    Called significant below 0.05, at most 5 % of such families hold a false claim.
    """
    known = sorted((p, place) for place, p in enumerate(probabilities) if p is not None)
    corrected: list[float | None] = [None] * len(probabilities)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        corrected[place] = highest
    return corrected


def _carrier(apart: Sequence[float], weights: Sequence[float], names: Sequence[str]) -> str | None:
    """Return the unit without which the difference changes most, if by more than half."""
    total, weight = math.fsum(apart), math.fsum(weights)
    if len(names) < 2 or total == 0:
        return None
    left = (total - np.array(apart)) / (weight - np.array(weights)) * weight / total
    place = int(np.abs(left - 1).argmax())
    return names[place] if abs(left[place] - 1) > 0.5 else None
