"""Disentangled attention: content to position and back (DeBERTa: He 2021, arXiv:2006.03654)."""

from typing import Any

import torch
from torch import nn

from ropewalk.harness.encodings.types import Places, Shape, by_distance


class Encoding(nn.Module):
    """Equation 4: (Qc·Kc + Qc·Kr(δ(i,j)) + Kc·Qr(δ(j,i))) / sqrt(3d), δ clipped to k on both sides.

    Kr and Qr are one table of vectors, put through each layer's own projections of keys and
    queries: the shared projections of section 5.
    """

    copies = 8  # arrays of one number per head and pair in memory at once

    def __init__(self, shape: Shape, *, clip: int | None = None) -> None:
        super().__init__()
        self.clip = shape.window if clip is None else clip
        if self.clip < 1:
            raise ValueError(f"clip must be 1 or more, got {clip}")
        self.heads, self.scale = shape.heads, (3 * shape.head_dim) ** -0.5
        self.vectors = nn.Parameter(torch.randn(2 * self.clip, shape.width) * 0.02)

    def scores(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, places: Places
    ) -> torch.Tensor:
        """Return both terms with a position of every pair, scaled."""
        # A causal model sees no pair of behind < 0: half of the vectors are not read.
        far, near = self.vectors[self.clip :], self.vectors[: self.clip + 1]
        to_key, to_query = (
            project(vectors).unflatten(-1, (self.heads, -1)).transpose(0, 1).to(query.dtype)
            for project, vectors in ((layer.k_proj, far), (layer.q_proj, near))
        )
        distance = places.distance.clamp(max=self.clip)
        content_to_position = by_distance(query @ to_key.mT, distance.clamp(max=self.clip - 1))
        position_to_content = by_distance(key @ to_query.mT, self.clip - distance.mT).mT
        scores: torch.Tensor = (content_to_position + position_to_content) * self.scale
        return scores
