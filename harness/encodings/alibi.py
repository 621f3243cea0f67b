"""ALiBi: scores fall with distance, at one slope per head (Press 2022, arXiv:2108.12409)."""

import math
from typing import Any

import torch
from torch import nn

from ropewalk.harness.encodings.types import Places, Shape


def slopes(heads: int) -> list[float]:
    """Return 2^(-8h/n) for h from 1 to n heads.

    If n is not a power of 2: those of the power below, then every second one of twice that power.
    """
    whole = 2 ** int(math.log2(heads))
    own = [2.0 ** (-8 * (head + 1) / whole) for head in range(whole)]
    return own if whole == heads else own + slopes(2 * whole)[::2][: heads - whole]


class Encoding(nn.Module):
    """Section 3: softmax(q·k / sqrt(d) - slope * (i - j)); nothing is learned."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.slopes = slopes(shape.heads)

    def scores(self, _: Any, query: torch.Tensor, __: Any, places: Places) -> torch.Tensor:
        """Return what the distance takes from every score, ``(heads, queries, keys)``."""
        slope = torch.tensor(self.slopes, device=query.device, dtype=torch.float32)
        return -slope[:, None, None] * places.distance
