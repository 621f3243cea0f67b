"""Two methods on the same documents or trials: how they differ and how significantly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tasks._intervals import LEVEL, Ratio, jackknife, ratios

SURE = 1 - LEVEL  # below it a corrected probability is significant
# A method that fails on one document in seven is on none of 20 in 5 % of samples: of fewer
# documents no test can tell the mean of such methods.
ENOUGH = 20
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """One method less another over ``n`` units: value, and probability by chance alone.

    ``p`` is the largest of three: that of the mean, that of the mean if the unit that speaks most
    against it were met once more, and that of the exact sign test of how many units are ``lower``
    and ``higher``. ``enough`` says whether ``n`` units are enough for a verdict. ``carrier`` is
    the one unit without which the difference changes by more than half. ``mean`` is what the mean
    says, None of hits; ``kept`` how much of its distance from 0, in standard errors, is left
    with the unit met once more. ``parts`` are, of shares, the sums of all that is lower and of all
    that is higher. ``relative``: 0.1 is 10 % higher. What n is too small to tell is None.
    """

    value: float
    p: float | None
    n: int
    lower: int = 0
    higher: int = 0
    enough: bool = True
    carrier: str | None = None
    mean: Ratio | None = None
    kept: float = 1.0
    parts: tuple[float, float] | None = None
    relative: bool = False

    @property
    def low(self) -> float | None:
        """Return the lower end of the 95 % interval."""
        return self.interval()[0]

    @property
    def high(self) -> float | None:
        """Return the upper end of the 95 % interval."""
        return self.interval()[1]

    def turned(self) -> Difference:
        """Return the other method less the one."""
        mean, value, parts = self.mean, -self.value, self.parts and self.parts[::-1]
        if mean is not None:
            mean = replace(mean, value=-mean.value, below=mean.above, above=mean.below)
            value = math.expm1(min(mean.value, 700.0)) if self.relative else value
        turned = replace(self, value=value, mean=mean, lower=self.higher, higher=self.lower)
        return replace(turned, parts=parts)

    def interval(self, level: float = LEVEL) -> tuple[float | None, float | None]:
        """Return the interval of this one comparison."""
        if self.parts is not None:
            return _shares(*self.parts, self.n, level)
        if self.mean is None:
            return None, None
        low, high = self.mean.interval(level)
        if self.relative and low is not None and high is not None:
            return math.expm1(min(low, 700.0)), math.expm1(min(high, 700.0))
        return low, high


def of_means(
    apart: Array, weights: Array, names: Sequence[str] = (), *, relative: bool = False
) -> list[Difference]:
    """Return of every column (units, columns) the mean of differences of sums, by their weights.

    ``relative``: the sums are of logarithms, and differences are given as shares.
    """
    value, wide = apart.sum(axis=0), np.broadcast_to(weights, apart.shape)
    # Met once more: the unit that speaks most against the mean.
    against = np.where(value > 0, apart, -apart).argmin(axis=0)[None]
    met = [np.take_along_axis(part, against, axis=0) for part in (apart, wide)]
    again = jackknife(np.vstack([apart, met[0]]), np.vstack([wide, met[1]]))
    carriers = _carriers(apart, weights, names)
    made = []
    for place, found in enumerate(ratios(apart, weights)):
        column = apart[:, place]
        lower, higher = int((column < 0).sum()), int((column > 0).sum())
        worse, spread, degrees = (float(part[place]) for part in again)
        p, kept = found.p(), 1.0
        if p is not None and found.error:
            kept = worse / spread / (found.value / found.error)
            p = replace(found, value=worse, error=spread, degrees=degrees).p() or 0.0
            p = max(p, found.p() or 0.0, signs(lower, higher))
        if p is not None and (kept <= 0 or (lower > higher) != (found.value < 0)):
            p = 1.0
        made.append(Difference(
            math.expm1(min(found.value, 700.0)) if relative else found.value, p, len(apart), lower,
            higher, len(apart) >= ENOUGH, carriers[place], found, kept, relative=relative,
        ))  # fmt: skip
    return made


def of_shares(one: Sequence[float] | Array, other: Sequence[float] | Array) -> Difference:
    """Compare hits (0 or 1) in the same trials: the difference of their shares.

    Probability by the exact sign test, McNemar's. It needs no least number of trials: of fewer
    than 6 no outcome is significant.
    """
    apart = np.subtract(one, other)
    gained, lost = int((apart > 0).sum()), int((apart < 0).sum())
    p, parts = signs(gained, lost), (lost, gained)
    return Difference((gained - lost) / len(one), p, len(one), lost, gained, parts=parts)


def of_parts(apart: Array, names: Sequence[str]) -> list[Difference]:
    """Return of every column (trials, columns) the mean of differences of shares, 0 to 1 each.

    Their probability is that of means, their interval that of shares.
    """
    lost, gained = -apart.clip(max=0).sum(axis=0), apart.clip(min=0).sum(axis=0)
    found = of_means(apart, np.ones((len(apart), 1)), names)
    sums = zip(lost.tolist(), gained.tolist(), strict=True)
    return [replace(one, parts=parts) for one, parts in zip(found, sums, strict=True)]


def _shares(lower: float, higher: float, n: int, level: float) -> tuple[float, float]:
    """Return the interval of a difference of shares by Bonett and Price (2012).

    Recommended by Fagerland, Lydersen and Laake (Statistics in Medicine 33, 2014). Changes may be
    parts of trials: no spread of such changes is wider than that of whole ones of the same sums.
    """
    up, down = (higher + 1) / (n + 2), (lower + 1) / (n + 2)
    half = float(special.ndtri((1 + level) / 2)) * math.sqrt(
        (up + down - (up - down) ** 2) / (n + 2)
    )
    return max(-1.0, up - down - half), min(1.0, up - down + half)


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


def _carriers(apart: Array, weights: Array, names: Sequence[str]) -> list[str | None]:
    """Return of every column the unit without which it changes most, if by more than half."""
    total = apart.sum(axis=0)
    if len(names) < 2:
        return [None] * len(total)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = (total - apart) / total * (weights.sum(axis=0) / (weights.sum(axis=0) - weights))
    changes = np.abs(left - 1)
    places = np.nan_to_num(changes).argmax(axis=0)
    return [
        names[place] if total[column] and changes[place, column] > 0.5 else None
        for column, place in enumerate(places)
    ]
