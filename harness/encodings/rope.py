"""Rotary: queries and keys are rotated by their positions (RoFormer: Su 2021, arXiv:2104.09864)."""

import torch
from torch import nn

from ropewalk.harness.encodings.types import Angles, Shape, rotated


class Encoding(nn.Module):
    """Section 3.2.2, channel pairs half-split: x cos + (-x₂, x₁) sin at base^(-2i/d) per token."""

    def __init__(self, shape: Shape, *, base: float = 10_000.0) -> None:
        del shape
        super().__init__()
        self.base = base

    def turn(
        self, query: torch.Tensor, key: torch.Tensor, angles: Angles, _: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate queries and keys by the cos and sin of their positions."""
        return rotated(query, angles), rotated(key, angles)
