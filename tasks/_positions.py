"""Compute the loss by position: the mean loss of runs of equal size of a window's targets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.types import Fact

BUCKETS = 32  # at most of a whole window, so that a sample stays one short line
DIGITS = 6  # after the point, of a loss in nats: finer than float32 computes it


def by_position(start: int, nll: Sequence[float], *, each: bool = False) -> dict[str, Fact]:
    """Return the facts of a window's losses: ``start``, ``bucket`` and ``losses``.

    ``start`` is the position of the first target, ``bucket`` the targets in a run, ``losses`` the
    mean loss of every run in nats per token; the last run has the remaining targets. With ``each``
    a run is one target.
    """
    bucket = 1 if each else math.ceil(len(nll) / BUCKETS)
    runs = [nll[first : first + bucket] for first in range(0, len(nll), bucket)]
    losses = [round(math.fsum(run) / len(run), DIGITS) for run in runs]
    return {"start": start, "bucket": bucket, "losses": losses}
