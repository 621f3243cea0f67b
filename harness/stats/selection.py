"""Select among methods that were measured on the same documents or trials.

Two statements are made, each wrong in at most 5 % of samples:

- **Winner.** The method with the lowest mean is the winner if its paired 95 % interval against
  each rival excludes zero. The number of rivals needs no correction: a false winner is most likely
  with two equal methods (Gutmann and Maymin, Annals of Statistics 15, 1987). It is the winner too
  if the bounds on regret, which are joint, leave no other method possible.
- **Regret.** How much worse each method can be than the best of all: Hsu's constrained intervals
  for multiple comparisons with the best (*Multiple Comparisons*, 1996). They hold for all methods
  together, so one holds for any method that is chosen afterwards. Whichever method is truly the
  best, the bounds need one event alone: no method looks better than that one by more than its
  bound. The probability of this comes from a studentised bootstrap of the documents, because
  differences from one method are strongly correlated.

Everything is in costs, of which less is better; a caller negates scores. ``results/statistics.md``
has the simulated error rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from ropewalk.harness.stats.measure import Measure, Units, values_of, weights_of
from ropewalk.harness.stats.paired import Array, Difference, of_means, of_shares, shares_of
from ropewalk.tasks._intervals import (
    CONFIDENCE,
    MIN_DOCUMENTS,
    MOST_RESAMPLED,
    ordered,
    ratios,
    studentised,
)

WIDEST = 2.0  # times the critical value by Student's t and Bonferroni, at most


@dataclass(frozen=True)
class Selection:
    """What the data say of k methods on ``n`` documents or trials.

    Attributes:
        best: place of the method with the lowest mean cost.
        winner: whether it is significantly the best.
        regret: how much each method's mean cost is at most above that of the best, simultaneous
            over all methods, shape (k,); at least 0, in the unit of the costs.
        possible: whether each method may be the best by the joint bounds, shape (k,); one that may
            not is significantly worse than another.
        value: mean of the row's cost less the column's, shape (k, k).
        upper: upper bound of ``value`` if the column is truly the best, shape (k, k).
    """

    best: int
    winner: bool
    regret: Array
    possible: NDArray[np.bool_]
    value: Array
    upper: Array
    n: int

    def needed(self, margin: float) -> int | None:
        """Return how many documents would bring the regret of ``best`` down to ``margin``.

        They are taken to be like those measured: a bound shrinks with the root of their number.
        None where no number would.
        """
        rivals = self.possible.copy()
        rivals[self.best] = False
        lead = self.value[self.best, rivals]
        room, width = margin - lead, self.upper[self.best, rivals] - lead
        if not (room > 0).all():
            return None
        wider: list[float] = [1.0, *((width / room) ** 2).tolist()]
        return math.ceil(self.n * max(wider))


def select(
    many: Sequence[Units], how: Measure, *, level: float = CONFIDENCE, candidates: int | None = None
) -> Selection | None:
    """Compare the units of several methods, which are the same; see ``select_means``."""
    values = values_of(many)
    if how.share:
        hits = 1 - values if how.lower else values
        return select_shares(hits, level=level, candidates=candidates)
    costs = values if how.lower else -values
    return select_means(costs, weights_of(many[0]), level=level, candidates=candidates)


def select_means(
    costs: Array, weights: Array, *, level: float = CONFIDENCE, candidates: int | None = None
) -> Selection | None:
    """Compare weighted means of costs.

    None for fewer than 3 documents, or for one that outweighs all others: they show no spread.

    Args:
        costs: summed cost of each document under each method, shape (documents, methods).
        weights: weight of each document, such as its tokens, shape (documents,).
        level: confidence of the regret bounds.
        candidates: methods that there were before some were eliminated. The comparisons that are
            left have only their part of the error, since the survivors were chosen by the data.
    """
    weights = np.asarray(weights, float)
    if len(costs) < MIN_DOCUMENTS or weights.sum() ** 2 < 2 * (weights**2).sum():
        return None
    order = ordered(costs - costs.mean(axis=1, keepdims=True), weights)
    costs, weights = costs[order], weights[order][:, None]
    count = costs.shape[1]
    alpha = (1 - level) * max(1, count - 1) / max(1, (candidates or count) - 1)
    above = partial(_above_means, weights=weights, alpha=alpha)
    compare = partial(of_means, weights=weights)
    return _selection(costs, costs.sum(axis=0) / weights.sum(), above, compare)


def select_shares(
    hits: Array, *, level: float = CONFIDENCE, candidates: int | None = None
) -> Selection | None:
    """Compare shares of hits, shape (trials, methods), of which more are better.

    The bounds are those of Bonett and Price, joint by Bonferroni; costs are misses. ``level`` and
    ``candidates`` are as in ``select_means``.
    """
    if not len(hits):
        return None
    misses, alpha = 1 - hits, 1 - level
    rivals = max(1, (candidates or hits.shape[1]) - 1)
    critical = float(max(ndtri(1 - alpha / rivals), ndtri(1 - alpha / 2)))

    def above(differences: Array) -> Array:
        center, error = shares_of(differences)
        return np.minimum(center + critical * error, 1.0)

    return _selection(misses, misses.mean(axis=0), above, of_shares)


def plainness(name: str) -> tuple[int, int, str]:
    """Return the key that sorts method names from the plainest: by options, length, alphabet."""
    return (
        (0, 0, "") if name == "none" else (1 + name.count("=") + name.count("+"), len(name), name)
    )


def preferred(names: Iterable[str], cost: Callable[[str], float]) -> str:
    """Return the method with the lowest in-window cost; among equals, the plainest name."""
    return min(names, key=lambda name: (cost(name), *plainness(name)))


def _selection(
    costs: Array,
    means: Array,
    above: Callable[[Array], Array],
    compare: Callable[[Array], list[Difference]],
) -> Selection:
    """Make the statements from the upper bounds of all differences from each method."""
    count, best = len(means), int(costs.sum(axis=0).argmin())
    upper = np.zeros((count, count))
    for control in range(count if count > 1 else 0):
        others = np.arange(count) != control
        upper[others, control] = above(costs[:, others] - costs[:, [control]])
    possible = np.asarray((upper >= 0).all(axis=0))
    regret = np.maximum(upper[:, possible].max(axis=1, initial=0), 0)

    def lower(rivals: NDArray[np.bool_]) -> bool:
        less = compare(costs[:, [best]] - costs[:, rivals])
        return all(one.high is not None and one.high < 0 for one in less)

    winner = count > 1 and (int(possible.sum()) == 1 or lower(np.arange(count) != best))
    return Selection(best, winner, regret, possible, means[:, None] - means, upper, len(costs))


def _above_means(differences: Array, weights: Array, alpha: float) -> Array:
    """Return upper bounds of the mean differences from one method, which hold together.

    A single rival has its own two-sided interval. For several rivals, the critical value is that
    of the largest studentised difference in the bootstrap, and at least Student's t. Few documents
    understate this value, so the level is raised by one part in their number.
    """
    documents, rivals = differences.shape
    if rivals == 1:
        return np.array([ratios(differences, weights)[0].interval(1 - alpha)[1]])
    shares = weights / weights.sum()
    means = differences.sum(axis=0) / weights.sum()
    deviations = (differences - means * weights) / weights.sum()
    error = np.sqrt((deviations**2 / (1 - shares)).sum(axis=0))
    error[error <= 1e-12 * np.abs(means)] = 0
    degrees = 1 / float((shares**2).sum()) - 1
    least, most = (float(stdtrit(degrees, 1 - alpha / part)) for part in (2, rivals))
    if documents > MOST_RESAMPLED:
        return np.asarray(means + most * error)
    lowest = -studentised(deviations, shares).min(axis=1)
    place = max(1, int(alpha * documents / (documents + 1) * (len(lowest) + 1)))
    critical = float(np.partition(lowest, -place)[-place])
    return np.asarray(means + max(least, min(critical, WIDEST * most)) * error)
