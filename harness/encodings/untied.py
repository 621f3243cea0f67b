"""TUPE: absolute positions compared by projections of their own (Ke 2020, arXiv:2006.15595)."""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import layer_norm

from ropewalk.harness.encodings.types import Places, Shape, bucket, check_buckets


class Encoding(nn.Module):
    """Equation 10: q·k / sqrt(2d) + (p_m U_Q)·(p_n U_K) / sqrt(2d) + b(m-n), TUPE-R.

    U_Q, U_K and p are those of all layers; p is normalized, as in the authors' code; b has T5's
    buckets, stored as there. Differs from TUPE: there is no [CLS] to untie.
    """

    def __init__(self, shape: Shape, *, buckets: int = 32, farthest: int = 128) -> None:
        super().__init__()
        check_buckets(buckets, farthest)
        self.heads, self.farthest = shape.heads, farthest
        self.scale = (2 * shape.head_dim) ** -0.5
        self.root: float = shape.head_dim**0.5  # of the bias, as in ``t5``
        self.table = nn.Embedding(shape.window, shape.width)
        nn.init.normal_(self.table.weight)
        wide = shape.heads * shape.head_dim
        self.queries = nn.Parameter(torch.randn(wide, shape.width) * 0.02)
        self.keys = nn.Parameter(torch.randn(wide, shape.width) * 0.02)
        self.bias = nn.Parameter(torch.zeros(shape.heads, buckets))

    def scores(self, _: Any, __: Any, ___: Any, places: Places) -> torch.Tensor:
        """Return the position's part of every score, ``(heads, queries, keys)``."""
        one = self._projected(places.query, self.queries)
        other = self._projected(places.key, self.keys)
        near = bucket(places.distance, self.bias.shape[1], self.farthest)
        scores: torch.Tensor = one @ other.mT * self.scale + self.root * self.bias[:, near]
        return scores

    def _projected(self, positions: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return p U of every head, ``(heads, positions, head_dim)``."""
        table = self.table(positions)
        rows: torch.Tensor = layer_norm(table, table.shape[-1:]) @ weight.T
        return rows.view(len(rows), self.heads, -1).transpose(0, 1)
