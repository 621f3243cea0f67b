"""Four terms with u, v and projected sinusoids of distance (Dai 2019, arXiv:1901.02860; XLNet)."""

from typing import Any

import torch
from torch import nn

from ropewalk.harness.encodings.types import Places, Shape, by_distance, sinusoids


class Encoding(nn.Module):
    """Section 3.3: q·k + q·W_R R(i-j) + u·k + v·W_R R(i-j); u and v of all layers, W_R of each."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.u = nn.Parameter(torch.zeros(shape.heads, shape.head_dim))
        self.v = nn.Parameter(torch.zeros(shape.heads, shape.head_dim))
        size = (shape.layers, shape.heads, shape.width, shape.head_dim)
        self.projection = nn.Parameter(torch.randn(size) * 0.02)

    def scores(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, places: Places
    ) -> torch.Tensor:
        """Return u·k + (q + v)·W_R R(i-j) of every pair, scaled."""
        distance = places.distance
        every = torch.arange(int(distance.max()) + 1, device=query.device)
        far = sinusoids(every, self.shape.width, query.dtype)
        far = far @ self.projection[layer.layer_idx].to(query.dtype)  # (heads, distances, head_dim)
        u, v = (part[:, None].to(query.dtype) for part in (self.u, self.v))
        moved = by_distance((query + v) @ far.mT, distance)
        scores: torch.Tensor = (u @ key.mT + moved) * layer.scaling
        return scores
