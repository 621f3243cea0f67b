"""Disentangled attention: content to position and back (DeBERTa: He 2021, arXiv:2006.03654)."""

from typing import Any

import torch
from torch import nn

from harness.encodings._types import Places, Shape


class Encoding(nn.Module):
    """Equation 4: (Qc·Kc + Qc·Kr(δ(i,j)) + Kc·Qr(δ(j,i))) / sqrt(3d), δ clipped to k on both sides.

    Kr and Qr are one table of vectors, put through each layer's own projections of keys and
    queries: the shared projections of section 5.
    """

    copies = 8  # arrays of a number a head and pair that are held at once

    def __init__(self, shape: Shape, *, clip: int | None = None) -> None:
        """``clip`` is the paper's k; unset, it is the trained window, as the paper's is."""
        super().__init__()
        self.clip = shape.window if clip is None else clip
        if self.clip < 1:
            message = f"clip must be 1 or more, got {clip}"
            raise ValueError(message)
        self.heads, self.scale = shape.heads, (3 * shape.head_dim) ** -0.5
        self.vectors = nn.Parameter(torch.randn(2 * self.clip, shape.width) * 0.02)

    def scores(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, places: Places
    ) -> torch.Tensor:
        """Return both terms with a position of every pair, scaled."""
        to_key, to_query = (
            project(self.vectors).unflatten(-1, (self.heads, -1)).transpose(0, 1).to(query.dtype)
            for project in (layer.k_proj, layer.q_proj)
        )
        there, back = self._index(places.behind), self._index(-places.behind)
        shape = (*query.shape[:3], key.shape[2])
        content_to_position: torch.Tensor = (query @ to_key.mT).gather(-1, there.expand(shape))
        by_key = (key @ to_query.mT).mT  # (batch, heads, vectors, keys)
        position_to_content = by_key.gather(-2, back.expand(shape))
        scores: torch.Tensor = (content_to_position + position_to_content) * self.scale
        return scores

    def _index(self, behind: torch.Tensor) -> torch.Tensor:
        """Return δ: 0 up to -k, 2k - 1 from k on, and behind + k between."""
        return (behind + self.clip).clamp(0, 2 * self.clip - 1)
