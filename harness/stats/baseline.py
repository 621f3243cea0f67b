"""Compare many methods with one baseline: probabilities that hold for all of them together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.stats.paired import Array, Difference
from tasks._intervals import (
    CONFIDENCE,
    MIN_DOCUMENTS,
    MOST_RESAMPLED,
    jackknife,
    ordered,
    studentised,
)

ALPHA = 1 - CONFIDENCE  # a corrected probability below it is significant


def adjusted(
    differences: Array, weights: Array, found: Sequence[Difference], *, shares: bool
) -> list[float | None]:
    """Return the probability of each difference from the baseline, corrected for their number.

    Dunnett's comparison with the joint distribution of a studentised bootstrap, step-down (Romano
    and Wolf, Journal of the American Statistical Association 100, 2005): a method is compared with
    the largest difference among those that are no more significant than it. Of shares, whose few
    hits cannot be resampled, the correction is Holm's.

    Args:
        differences: summed differences of each document, shape (documents, methods).
        weights: weight of each document, shape (documents,).
        found: the same differences, each with its own probability.
        shares: whether the differences are of shares of hits.
    """
    own = [one.p for one in found]
    if shares or len(found) < 2 or not MIN_DOCUMENTS <= len(differences) <= MOST_RESAMPLED:
        return holm(own)
    order = ordered(differences, weights)
    differences, weights = differences[order], np.asarray(weights, float)[order][:, None]
    value, error, _ = jackknife(differences, weights)
    total = weights.sum()
    drawn = np.abs(studentised((differences - value * weights) / total, weights / total))
    certain = np.where(value == 0, 0.0, np.inf)  # a difference that is equal on all documents
    seen = np.divide(np.abs(value), error, out=certain, where=error > 1e-12 * np.abs(value))
    corrected: list[float | None] = [None] * len(found)
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
