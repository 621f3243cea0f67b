"""How sure it is that one candidate is worse than another, on the same documents."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from harness.reports.stats.paired import ENOUGH, of_means
from tasks._intervals import LEAST, jackknife

Array = NDArray[np.float64]
UNSEEN = 1.0  # nats a token: the failure that is assumed possible while few documents are measured


def chances(apart: Array, level: float, lost: float = 0.0) -> Array:
    """Return of every column the probability of a mean so far above 0, were it not above.

    That of ``students``, and from 20 documents on the reports' own test too: the mean by the
    studentised bootstrap and the exact sign test, where the probability is below ``level`` without
    them.
    """
    found = students(apart, lost)
    few = np.flatnonzero(found < level)  # what Student's t does not tell is not resampled
    if len(apart) >= ENOUGH and few.size:
        tested = of_means(apart[:, few], np.ones((len(apart), 1)))
        for place, one in zip(few, tested, strict=True):
            found[place] = max(found[place], (1.0 if one.p is None else one.p) / 2)
    return found


def students(apart: Array, lost: float = 0.0) -> Array:
    """Return of every column the probability by Student's t; below 3 documents it is 1.

    The greater of two: of the documents, and with one more: that which speaks most against it, met
    again, or one that is ``lost`` below the mean.
    """
    found = np.ones(apart.shape[1])
    if len(apart) < LEAST:
        return found
    more = np.minimum(apart.min(axis=0), apart.mean(axis=0) - lost)
    for rows in (apart, np.vstack([apart, more])):
        value, error, degrees = jackknife(rows, np.ones((len(rows), 1)))
        with np.errstate(divide="ignore", invalid="ignore"):
            p = np.where(error > 0, stdtr(degrees, -value / error), np.where(value > 0, 0.0, 1.0))
        found = p if rows is apart else np.maximum(found, p)
    return found


def failure(apart: Array) -> float:
    """Return how badly a candidate may fail on one document, in nats a token.

    It is the most that any column differs on a document from what is usual for it; of fewer than
    20 documents at least 1.
    """
    unlike = float(np.abs(apart - np.median(apart, axis=0)).max())
    return unlike if len(apart) >= ENOUGH else max(unlike, UNSEEN)
