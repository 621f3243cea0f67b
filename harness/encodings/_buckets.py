"""T5's buckets of distances, which two encodings have."""

from __future__ import annotations

import math

import torch


def bucket(distance: torch.Tensor, buckets: int, farthest: int) -> torch.Tensor:
    """Return the bucket of every distance: one each up to half of them, then logarithmic.

    ``farthest`` and all beyond are in the last one. This is the causal rule: distances before 0
    have none.
    """
    exact = buckets // 2
    ratio = distance.clamp(min=exact).double() / exact
    far = exact + (ratio.log() / math.log(farthest / exact) * (buckets - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


def check(buckets: int, farthest: int) -> None:
    """Raise ValueError for buckets that cannot be half exact and half logarithmic."""
    if buckets < 2 or buckets % 2:
        raise ValueError(f"buckets must be even, 2 or more, got {buckets}")
    if farthest <= buckets // 2:
        raise ValueError(
            f"farthest must be more than half of the {buckets} buckets, got {farthest}"
        )
