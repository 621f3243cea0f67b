"""xPos: rotary, and scores that decay with distance (Sun 2022, arXiv:2212.10554)."""

import torch
from torch import nn

from ropewalk.harness.encodings.types import Angles, Shape, rotated


class Encoding(nn.Module):
    """Algorithm 1: queries times ζ^(n/B), keys times ζ^(-n/B), ζ = (2i/d + γ) / (1 + γ), γ = 0.4.

    B is half of the window, as the paper's 512 of 1024. Differs from the paper: its blockwise
    attention at inference is not part of it. A scaling method changes the rotation alone. Past 35
    windows (of float16: 4) the powers leave the range of the numbers, and a cell fails.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        base: float = 10_000.0,
        gamma: float = 0.4,
        scale_base: float | None = None,
    ) -> None:
        super().__init__()
        scale_base = shape.window / 2 if scale_base is None else scale_base
        if gamma <= 0 or scale_base <= 0:
            raise ValueError(
                f"gamma and scale_base must be more than 0, got {gamma} and {scale_base:g}"
            )
        self.base, self.gamma, self.scale_base = base, gamma, scale_base

    def turn(
        self, query: torch.Tensor, key: torch.Tensor, angles: Angles, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate queries and keys, and scale their channel pairs by their positions."""
        half = query.shape[-1] // 2
        pairs = torch.arange(half, device=query.device, dtype=torch.float64) / half
        zeta = ((pairs + self.gamma) / (1 + self.gamma)).repeat(2)
        decay = zeta ** (positions[:, None].double() / self.scale_base)
        turned = rotated(query, angles), rotated(key, angles)
        return turned[0] * decay.to(query.dtype), turned[1] / decay.to(key.dtype)
