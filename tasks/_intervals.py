"""95 % intervals, by scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVEL = 0.95
RESAMPLES = 2000


def proportion(hits: int, n: int) -> tuple[float, float]:
    """Return the Wilson score interval of ``hits`` in ``n`` (Wilson 1927)."""
    from scipy.stats import binomtest

    interval = binomtest(hits, n).proportion_ci(LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def ratio(sums: Sequence[float], counts: Sequence[int]) -> tuple[float | None, float | None]:
    """Return a bootstrap interval of sum(sums) / sum(counts), resampling pairs.

    The pairs are documents: tokens of one document are not independent. One pair has no spread
    to resample and gives (None, None). The draws are seeded, so a report repeats bit for bit.
    """
    import numpy as np
    from scipy.stats import bootstrap

    if len(sums) < 2:
        return None, None
    rates = [s / c for s, c in zip(sums, counts, strict=True)]
    if math.isclose(min(rates), max(rates), rel_tol=1e-12):
        return rates[0], rates[0]
    result = bootstrap(
        (np.asarray(sums), np.asarray(counts, dtype=float)),
        lambda s, c, axis=-1: np.sum(s, axis=axis) / np.sum(c, axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
