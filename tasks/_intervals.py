"""Compute 95 % intervals of skewed losses: Student's t, widened by a studentised bootstrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from ropewalk.tasks.types import Sample

Array = Any  # of NumPy

CONFIDENCE = 0.95
MIN_DOCUMENTS = 3  # documents; of fewer no interval is given
RESAMPLES = 1999
CHUNK = 500  # columns resampled at a time, which bounds the memory
MOST_RESAMPLED = 2000  # documents; the mean of more is close to normal
# The bootstrap of few documents covers less than its level says: its tail probabilities count
# 1.5 times, which simulated lognormal losses of unequal lengths call for.
TAIL = (1 - CONFIDENCE) / 2 / 1.5
# One document in n that is unlike the others needs 2.2 times Student's t (binomial, n to 60).
WIDEST = 3.0


@dataclass(frozen=True)
class Ratio:
    """A ratio of sums over units, its standard error, and the degrees of freedom of that error.

    ``error`` is None where the units are too few for one. ``below`` and ``above``, 1 to 3,
    are how many times Student's t the interval reaches to each side.
    """

    value: float
    error: float | None
    degrees: float
    below: float = 1.0
    above: float = 1.0

    def interval(self, level: float = CONFIDENCE) -> tuple[float | None, float | None]:
        """Return the interval."""
        if self.error is None:
            return None, None
        half = self.error * float(stdtrit(self.degrees, (1 + level) / 2))
        return self.value - half * self.below, self.value + half * self.above

    def exp(self) -> tuple[float, float | None, float | None]:
        """Return the perplexity of a mean loss in nats, and the ends of its interval.

        No loss is below 0, so no end is below 1. A loss above 700 nats has no perplexity in a float
        and counts as 700.
        """
        low, high = (None if end is None else _exp(max(end, 0.0)) for end in self.interval())
        return _exp(self.value), low, high

    def p(self) -> float | None:
        """Return the two-sided probability of a value this far from 0, were it 0 in truth."""
        if self.error is None:
            return None
        if self.error == 0:
            return 1.0 if self.value == 0 else 0.0
        toward = self.below if self.value > 0 else self.above
        return float(2 * stdtr(self.degrees, -abs(self.value) / (self.error * toward)))


def _exp(nats: float) -> float:
    return math.exp(min(nats, 700.0))


def proportion(hits: float, n: float) -> tuple[float, float]:
    """Return the Wilson score interval of ``hits`` in ``n`` (Wilson 1927).

    Hits may be parts of trials, such as the share of values found. Shares between 0 and 1 never
    spread more than zeros and ones with the same mean, so the interval covers at least as often.
    """
    p, z = hits / n, float(ndtri((1 + CONFIDENCE) / 2))
    scale = 2 * (n + z**2)
    center = (2 * n * p + z**2) / scale
    half = z / scale * math.sqrt(4 * n * p * (1 - p) + z**2)
    return 0.0 if hits == 0 else center - half, 1.0 if hits == n else center + half


def per_weight(samples: Sequence[Sample]) -> tuple[Ratio, int]:
    """Return the sum of the values over that of the weights, by units, and how many units."""
    sums: dict[str, list[float]] = {}
    weights: dict[str, int] = {}
    for sample in samples:
        sums.setdefault(sample.doc_id, []).append(sample.value)
        weights[sample.doc_id] = weights.get(sample.doc_id, 0) + sample.weight
    return ratio([math.fsum(values) for values in sums.values()], list(weights.values())), len(sums)


def ratio(sums: Sequence[float], counts: Sequence[float]) -> Ratio:
    """Return sum(sums) / sum(counts) and how well the units, documents, tell it: see ``jackknife``.

    Fewer than 3 documents, or one that outweighs all others, give no error.
    """
    return _ratio(tuple(sums), tuple(counts))


@lru_cache(maxsize=2**14)
def _ratio(sums: tuple[float, ...], counts: tuple[float, ...]) -> Ratio:
    (result,) = ratios(np.array(sums, dtype=float)[:, None], np.array(counts, dtype=float)[:, None])
    return replace(result, value=math.fsum(sums) / math.fsum(counts))


def ratios(sums: Array, counts: Array) -> list[Ratio]:
    """Return the ratio of every column of ``sums`` to that of ``counts``, or to their only one.

    Student's t misses the truth of skewed losses on one side: where the studentised bootstrap
    (Efron and Tibshirani 1993, chapter 12) reaches further, so does the interval.
    """
    if sums.shape[1] > CHUNK:
        parts = [slice(first, first + CHUNK) for first in range(0, sums.shape[1], CHUNK)]
        own = counts.shape[1] > 1
        every = (ratios(sums[:, part], counts[:, part] if own else counts) for part in parts)
        return list(chain.from_iterable(every))
    value, error, degrees = jackknife(sums, counts)
    if len(sums) < MIN_DOCUMENTS or degrees.min() < 1:
        return [Ratio(float(one), None, 0) for one in value]
    # Equal rates differ by their rounding, which is no spread.
    error[error <= 1e-12 * np.abs(value)] = 0
    columns = np.broadcast_arrays(value, error, degrees, *_widths(sums, counts, value, degrees))
    return [Ratio(*row) for row in np.stack(columns, axis=1).tolist()]


def jackknife(sums: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Return value, error and degrees of freedom of the ratio of every column.

    Tokens of one document are not independent, so the error is computed from the deviations of the
    documents. Each deviation is raised for its own influence on the ratio (HC3, the jackknife). The
    degrees of freedom are the effective number of documents, (sum w)^2 / sum w^2 (Kish 1965),
    minus one.
    """
    total = counts.sum(axis=0)
    shares = counts / total
    value = sums.sum(axis=0) / total
    deviations = (sums - value * counts) / total
    with np.errstate(divide="ignore", invalid="ignore"):  # one document alone: 0 / 0
        error = np.sqrt(((deviations / (1 - shares)) ** 2).sum(axis=0))
    return value, error, 1 / (shares**2).sum(axis=0) - 1


def _widths(sums: Array, counts: Array, value: Array, degrees: Array) -> tuple[Array, Array]:
    """Return how many times Student's t the intervals reach below and above."""
    if len(sums) > MOST_RESAMPLED:
        return np.ones_like(value), np.ones_like(value)
    shares = counts / counts.sum(axis=0)
    deviations = (sums - value * counts) / counts.sum(axis=0)
    order = np.lexsort((deviations, np.abs(deviations)), axis=0)
    deviations = np.take_along_axis(deviations, order, axis=0)
    if np.ptp(shares) > 0:
        shares = np.take_along_axis(np.broadcast_to(shares, order.shape), order, axis=0)
    drawn = studentised(deviations, shares)
    place = int(TAIL * (len(drawn) + 1))
    cut = np.partition(drawn, (place, -place - 1), axis=0)
    half = stdtrit(degrees, (1 + CONFIDENCE) / 2)
    below, above = cut[-place - 1] / half, -cut[place] / half
    return below.clip(1, WIDEST), above.clip(1, WIDEST)


def ordered(rows: Array, weights: Array) -> Array:
    """Return an order of the documents that depends on their numbers alone.

    What is resampled in it is the same whatever order the documents were given in.
    """
    return np.lexsort(((rows**3).sum(axis=1), (rows**2).sum(axis=1), weights))


def studentised(deviations: Array, shares: Array) -> Array:
    """Return the studentised means of every resample, shape (resamples, columns).

    Args:
        deviations: each document's deviation from the mean, per total weight, shape (documents,
            columns).
        shares: each document's share of the total weight, shape (documents, 1 or columns).
    """
    drawn = _resamples(len(deviations))
    weight = drawn @ shares
    shift = drawn @ deviations / weight
    spread = drawn @ deviations**2 - 2 * shift * (drawn @ (deviations * shares))
    spread += shift**2 * (drawn @ shares**2)
    tiny = 1e-9 * (deviations**2).sum(axis=0)
    documents = len(deviations)
    scale = np.sqrt(np.maximum(spread, tiny) * documents / (documents - 1)) / weight
    return np.divide(shift, scale, out=np.zeros_like(shift), where=scale > 0)


@lru_cache(maxsize=4)
def _resamples(n: int) -> Array:
    """Return how often every document is drawn in every resample, the same in every process.

    A resample of only one document has no spread, and is left out.
    """
    drawn = np.floor(np.random.default_rng(n).random((RESAMPLES, n)) * n).astype(int)
    places = (drawn + n * np.arange(RESAMPLES)[:, None]).ravel()
    counts = np.bincount(places, minlength=RESAMPLES * n).reshape(RESAMPLES, n)
    return counts[counts.max(axis=1) < n].astype(float)
