"""Learned vectors of clipped distances, added to keys and values (Shaw 2018, arXiv:1803.02155)."""

from typing import Any

import torch
from torch import nn

from ropewalk.harness.encodings.types import Places, Shape, by_distance


class Encoding(nn.Module):
    """Equations 3 and 4: e = q (k + a^K)ᵀ / sqrt(d), z = Σ α (v + a^V), a of distance min(i-j, k).

    Every layer and head has its own vectors, as in the paper's base model. Only distances from 0 on
    occur in a causal model.
    """

    def __init__(self, shape: Shape, *, clip: int = 16) -> None:
        super().__init__()
        if clip < 1:
            raise ValueError(f"clip must be 1 or more, got {clip}")
        self.clip = clip
        size = (shape.layers, shape.heads, clip + 1, shape.head_dim)
        self.keys = nn.Parameter(torch.randn(size) * 0.02)
        self.worth = nn.Parameter(torch.randn(size) * 0.02)

    def scores(self, layer: Any, query: torch.Tensor, _: Any, places: Places) -> torch.Tensor:
        """Return q · a^K of every pair, scaled."""
        table = query @ self.keys[layer.layer_idx].to(query.dtype).mT
        near = places.distance.clamp(max=self.clip)
        scores: torch.Tensor = by_distance(table, near) * layer.scaling
        return scores

    def values(self, layer: Any, weights: torch.Tensor, places: Places) -> torch.Tensor:
        """Return Σ α a^V of every query: its weights summed by clipped distance."""
        index = places.distance.clamp(max=self.clip).expand(weights.shape)
        summed = weights.new_zeros((*weights.shape[:-1], self.clip + 1))
        summed = summed.scatter_add(-1, index, weights)
        return summed @ self.worth[layer.layer_idx].to(weights.dtype)
