"""encoding: what it adds and where it comes from, in one line."""

from typing import Any

import torch
from torch import nn

from ropewalk.harness.encodings import Places, Shape


class Encoding(nn.Module):
    """Here scores fall by the square root of the distance, at a learned rate per head.

    It holds parameters and persistent buffers alone. Other methods that it may have: inputs, turn,
    values, attend. Keyword-only parameters are the options.
    """

    def __init__(self, shape: Shape, *, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.full((shape.heads, 1, 1), rate))

    def scores(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, places: Places
    ) -> torch.Tensor:
        """Return what is added to the scaled scores, (heads, queries, keys)."""
        return -self.rate * places.distance**0.5
