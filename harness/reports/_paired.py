"""Two methods on the same documents or trials: how they differ, how surely, how many would tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from scipy import special, stats

from tasks._intervals import LEVEL, Ratio, ratio

SURE = 1 - LEVEL  # below it a corrected probability is called sure
POWER = 0.8
MOST_UNITS = 10**6  # more than these separate nothing


@dataclass(frozen=True)
class Difference:
    """One method less another over ``n`` units: value, interval, probability by chance alone.

    What n is too small to tell is None.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None
    n: int
    plan: Callable[[], int | None] = field(repr=False, compare=False)

    @cached_property
    def needed(self) -> int | None:
        """How many units would tell the two apart in four of five sweeps (5 % level, 80 % power).

        Were the difference seen the true one; None where none is seen.
        """
        return self.plan()


def of_means(
    one: Sequence[float], other: Sequence[float], weights: Sequence[float], *, level: float = LEVEL
) -> Difference:
    """Compare sums over units of equal ``weights``: the difference of the weighted means."""
    apart = [a - b for a, b in zip(one, other, strict=True)]
    found = ratio(apart, weights)
    low, high = found.interval(level)
    return Difference(
        found.value, low, high, found.p(), len(apart), partial(_units_needed, found, len(apart))
    )


def of_shares(one: Sequence[float], other: Sequence[float], *, level: float = LEVEL) -> Difference:
    """Compare hits (0 or 1) in the same trials: the difference of their shares.

    Interval by Bonett and Price (2012), probability by McNemar's mid-p test: what Fagerland,
    Lydersen and Laake (Statistics in Medicine 33, 2014) recommend for paired shares.
    """
    gained = sum(a > b for a, b in zip(one, other, strict=True))
    lost = sum(a < b for a, b in zip(one, other, strict=True))
    n = len(one)
    if not n:
        return Difference(math.nan, None, None, None, 0, lambda: None)
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = float(special.ndtri((1 + level) / 2)) * math.sqrt(
        (up + down - (up - down) ** 2) / (n + 2)
    )
    low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    value = (gained - lost) / n
    return Difference(
        value, low, high, _mid_p(gained, lost), n, partial(_trials_needed, gained, lost, n)
    )


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


def _mid_p(gained: int, lost: int) -> float:
    """Return McNemar's mid-p: the exact two-sided probability less half that of the case seen."""
    if gained == lost:
        return 1.0
    changed = gained + lost
    fewer = min(gained, lost)
    tail, below = special.bdtr(fewer, changed, 0.5), special.bdtr(fewer - 1, changed, 0.5)
    return float(2 * tail - (tail - below)) if fewer else float(tail)


def _units_needed(found: Ratio, n: int) -> int | None:
    """Return the least number of such units at which the t-test has its power."""
    if found.error is None or found.value == 0:
        return None
    if found.error == 0:
        return min(n, 3)

    def power(units: int) -> float:
        degrees = max(1.0, (found.degrees + 1) * units / n - 1)
        shift = abs(found.value) / float(found.error or 1) * math.sqrt(units / n)
        return float(stats.nct.sf(stats.t.ppf((1 + LEVEL) / 2, degrees), degrees, shift))

    few, many = 2, 3
    while power(many) < POWER:
        few, many = many, 2 * many
        if many > MOST_UNITS:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if power(middle) >= POWER else (middle, many)
    return many


def _trials_needed(gained: int, lost: int, n: int) -> int | None:
    """Return the number of trials at which McNemar's test has its power (Connor 1987)."""
    if gained == lost:
        return None
    changed, value = (gained + lost) / n, (gained - lost) / n
    high, power = (float(stats.norm.ppf(share)) for share in ((1 + LEVEL) / 2, POWER))
    root = high * math.sqrt(changed) + power * math.sqrt(changed - value * value)
    # Of fewer than 5 trials not even the clearest outcome is significant.
    found = max(5, math.ceil((root / value) ** 2))
    return found if found <= MOST_UNITS else None
