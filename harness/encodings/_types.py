"""What an encoding is given: the shape of the model around it, and the positions of a forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
        """How far each key lies before each query, ``(queries, keys)``; 0 for later keys."""
        return self.behind.clamp(min=0)

    @property
    def behind(self) -> torch.Tensor:
        """Position of the query less that of the key, below 0 for a later key."""
        return self.query[:, None] - self.key[None]


def sinusoids(
    positions: torch.Tensor, width: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return sin and cos in turn of position / 10000^(2i/width), ``(*positions.shape, width)``."""
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64)
    angles = positions[..., None].double() / 10_000.0 ** (pairs / width)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2).to(dtype)


def swapped(states: torch.Tensor) -> torch.Tensor:
    """Return every channel's partner of the half-split rotation, the first half negated."""
    one, other = states.chunk(2, -1)
    return torch.cat((-other, one), -1)


def by_distance(table: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """Return of every query the entry of its row at every key's distance.

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


def check_cached(positions: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise ValueError for positions other than those after a cache, ``(1, tokens)``.

    It holds no positions: its keys are at 0, 1, 2 and on.
    """
    if bool((positions != wanted).any()):
        raise ValueError(
            f"with a cache the positions go on from it, here from {int(wanted[0, 0])}; give none,"
            " or use_cache=False"
        )
