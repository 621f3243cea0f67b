"""Where in a window the loss is: the targets cut into runs of equal size, a mean loss of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks._types import Fact

BUCKETS = 32  # at most, so that a sample stays one short line
DIGITS = 4  # of a mean in nats: a token's loss is not known better in float32


def by_position(start: int, nll: Sequence[float]) -> dict[str, Fact]:
    """Return the facts of a window's losses: ``start``, ``bucket`` and ``losses``.

    ``start`` is the position of the first target, ``bucket`` the targets in a run, ``losses`` the
    mean loss of every run in nats per token; the last run holds what is left.
    """
    bucket = math.ceil(len(nll) / BUCKETS)
    runs = [nll[first : first + bucket] for first in range(0, len(nll), bucket)]
    losses = [round(math.fsum(run) / len(run), DIGITS) for run in runs]
    return {"start": start, "bucket": bucket, "losses": losses}
