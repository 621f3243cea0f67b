"""Compute the loss by position: the mean loss of runs of equal size of a window's targets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks._types import Fact

BUCKETS = 32  # at most, so that a sample stays one short line
DIGITS = 4  # of a mean in nats: the precision of a token's loss in float32


def by_position(start: int, nll: Sequence[float]) -> dict[str, Fact]:
    """Return the facts of a window's losses: ``start``, ``bucket`` and ``losses``.

    ``start`` is the position of the first target, ``bucket`` the targets in a run, ``losses`` the
    mean loss of every run in nats per token; the last run has the remaining targets.
    """
    bucket = math.ceil(len(nll) / BUCKETS)
    runs = [nll[first : first + bucket] for first in range(0, len(nll), bucket)]
    losses = [round(math.fsum(run) / len(run), DIGITS) for run in runs]
    return {"start": start, "bucket": bucket, "losses": losses}
