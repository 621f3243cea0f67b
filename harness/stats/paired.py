"""The difference of two methods on the same documents or trials, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from ropewalk.tasks._intervals import (
    CONFIDENCE,
    MIN_DOCUMENTS,
    MOST_RESAMPLED,
    jackknife,
    ordered,
    ratios,
    studentised,
)
from ropewalk.tasks.types import Score

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """One method less another over ``n`` documents or trials.

    Attributes:
        value: the difference; relative where requested (0.1 is 10 % higher).
        low, high: its own 95 % interval; None for fewer than 3 documents.
        p: two-sided probability of a difference this far from 0 if there were none.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None
    n: int

    def significant(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def swapped(self, *, relative: bool) -> Difference:
        """Return the other method less the one."""
        value, low, high = (
            None if end is None else 1 / (1 + end) - 1 if relative else -end
            for end in (self.value, self.high, self.low)
        )
        assert value is not None
        return replace(self, value=value, low=low, high=high)


def difference_columns(name: str, difference: Difference | Score | None) -> dict[str, float | None]:
    """Return a difference, or a score, and the ends of its interval as columns of a table."""
    ends = {name: "value", f"{name}_low": "low", f"{name}_high": "high"}
    return {column: getattr(difference, end, None) for column, end in ends.items()}


def of_means(differences: Array, weights: Array, *, relative: bool = False) -> list[Difference]:
    """Return the mean of each column of summed differences, per weight.

    Args:
        differences: the summed differences of each document, shape (documents, columns).
        weights: tokens of each document, shape (documents, 1).
        relative: whether the sums are of logarithms; differences are then shares.
    """
    results = []
    for mean in ratios(differences, weights):
        value, (low, high) = mean.value, mean.interval()
        if relative:
            value = share(value)
            low, high = (None if end is None else share(end) for end in (low, high))
        results.append(Difference(value, low, high, mean.p(), len(differences)))
    return results


def share(nats: float) -> float:
    """Return a difference of logarithms as a share, held below overflow."""
    return math.expm1(min(nats, 700.0))


def of_shares(differences: Array) -> list[Difference]:
    """Return the mean difference of hits of each column, shape (trials, columns).

    The interval is that of Bonett and Price (2012), recommended by Fagerland, Lydersen and Laake
    (Statistics in Medicine 33, 2014): one trial is added to each side, so that it never has width
    zero. Hits may be parts of trials: their spread is at most that of whole ones.
    """
    center, error = shares_of(differences)
    half = float(ndtri((1 + CONFIDENCE) / 2)) * error
    low, high = np.maximum(center - half, -1.0), np.minimum(center + half, 1.0)
    p = 2 * ndtr(-np.abs(center) / error)
    columns = np.stack([differences.mean(axis=0), low, high, p], axis=1).tolist()
    n = len(differences)
    return [Difference(value, low, high, p, n) for value, low, high, p in columns]


def shares_of(differences: Array) -> tuple[Array, Array]:
    """Return the centers and standard errors of Bonett and Price's intervals, shape (columns,)."""
    n = len(differences)
    up = (differences.clip(min=0).sum(axis=0) + 1) / (n + 2)
    down = (-differences.clip(max=0).sum(axis=0) + 1) / (n + 2)
    return up - down, np.sqrt((up + down - (up - down) ** 2) / (n + 2))


ALPHA = 1 - CONFIDENCE  # a corrected probability below it is significant
NO_DIFFERENCE = "no significant difference"


def adjusted(
    differences: Array, weights: Array, results: Sequence[Difference], *, shares: bool
) -> list[float | None]:
    """Return the probability of each difference from the baseline, corrected for their number.

    This is Dunnett's comparison with the joint distribution of a studentised bootstrap, step-down
    (Romano and Wolf, Journal of the American Statistical Association 100, 2005). A method is
    compared with the largest difference among the methods that are no more significant. For shares
    the correction is Holm's, because few hits cannot be resampled.

    Args:
        differences: summed differences of each document, shape (documents, methods).
        weights: weight of each document, shape (documents,).
        results: the same differences, each with its own probability.
        shares: whether the differences are of shares of hits.
    """
    own = [one.p for one in results]
    if shares or len(results) < 2 or not MIN_DOCUMENTS <= len(differences) <= MOST_RESAMPLED:
        return holm(own)
    order = ordered(differences, weights)
    differences, weights = differences[order], np.asarray(weights, float)[order][:, None]
    value, error, _ = jackknife(differences, weights)
    total = weights.sum()
    drawn = np.abs(studentised((differences - value * weights) / total, weights / total))
    certain = np.where(value == 0, 0.0, np.inf)  # a difference that is equal on all documents
    seen = np.divide(np.abs(value), error, out=certain, where=error > 1e-12 * np.abs(value))
    corrected: list[float | None] = [None] * len(results)
    highest, left = 0.0, np.argsort(-seen, kind="stable").tolist()
    while left:
        place = left[0]
        reached = 1 + int((drawn[:, left].max(axis=1) >= seen[place]).sum())
        highest = max(highest, reached / (len(drawn) + 1), own[place] or 0.0)
        corrected[place] = None if own[place] is None else highest
        left = left[1:]
    return corrected


def holm(probabilities: Sequence[float | None]) -> list[float | None]:
    """Return the probabilities corrected for their number (Holm 1979); None stays and counts not.

    If those below 0.05 are called significant, at most 5 % of such families hold a false claim.
    """
    known = sorted((p, place) for place, p in enumerate(probabilities) if p is not None)
    corrected: list[float | None] = [None] * len(probabilities)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        corrected[place] = highest
    return corrected
