"""What encodings get: the shape of the model and the positions of a forward; and helpers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

Angles = tuple[torch.Tensor, torch.Tensor]  # cos and sin, (rows, tokens, head_dim)


@dataclass(frozen=True)
class Shape:
    """The model around an encoding: channels, layers, heads, and the trained window in tokens."""

    width: int
    layers: int
    heads: int
    head_dim: int
    window: int


@dataclass(frozen=True)
class Places:
    """The positions of the queries and of the keys of a forward, ``(queries,)`` and ``(keys,)``."""

    query: torch.Tensor
    key: torch.Tensor

    @property
    def distance(self) -> torch.Tensor:
        """The distance of each key before each query, ``(queries, keys)``; 0 for later keys."""
        return self.behind.clamp(min=0)

    @property
    def behind(self) -> torch.Tensor:
        """The position of the query minus that of the key; negative for a later key."""
        return self.query[:, None] - self.key[None]


def sinusoids(
    positions: torch.Tensor, width: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return sin and cos in turn of position / 10000^(2i/width), ``(*positions.shape, width)``."""
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64)
    angles = positions[..., None].double() / 10_000.0 ** (pairs / width)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2).to(dtype)


def rotated(states: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Return queries or keys turned by cos and sin of their positions, channel pairs half-split."""
    cos, sin = (part[:, None] for part in angles)
    one, other = states.chunk(2, -1)
    return states * cos + torch.cat((-other, one), -1) * sin


def by_distance(table: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """Return, for every query, the entry of its row at the distance of every key.

    ``table`` is ``(batch, heads, queries, distances)``, the result ``(…, queries, keys)``.
    """
    index = distance.expand(*table.shape[:2], *distance.shape)
    return table.gather(-1, index)


def check_rows(mask: torch.Tensor | None, positions: torch.Tensor) -> None:
    """Raise ValueError for a batch whose rows do not all begin at the same position.

    ``mask`` is that of padding, ``(rows, tokens)``; padding at the end changes nothing.
    """
    begun_later = mask is not None and mask.dim() == 2 and bool((mask[:, 1:] > mask[:, :-1]).any())
    if begun_later or bool((positions != positions[:1]).any()):
        raise ValueError("the rows of a batch must have the same positions; pad at the end alone")


def check_cached(positions: torch.Tensor, following: torch.Tensor) -> None:
    """Raise ValueError for positions other than those after a cache, ``(1, tokens)``.

    It holds no positions: its keys are at 0, 1, 2 and on.
    """
    if bool((positions != following).any()):
        raise ValueError(
            f"with a cache the positions go on from it, here from {int(following[0, 0])}; give"
            " none, or use_cache=False"
        )


def bucket(distance: torch.Tensor, buckets: int, farthest: int) -> torch.Tensor:
    """Return T5's bucket of every distance: one each up to half of them, then logarithmic.

    ``farthest`` and all beyond are in the last one. This is the causal rule: negative distances
    have none.
    """
    exact = buckets // 2
    ratio = distance.clamp(min=exact).double() / exact
    far = exact + (ratio.log() / math.log(farthest / exact) * (buckets - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


def check_buckets(buckets: int, farthest: int) -> None:
    """Raise ValueError for buckets that cannot be half exact and half logarithmic."""
    if buckets < 2 or buckets % 2:
        raise ValueError(f"buckets must be even, 2 or more, got {buckets}")
    if farthest <= buckets // 2:
        raise ValueError(
            f"farthest must be more than half of the {buckets} buckets, got {farthest}"
        )
