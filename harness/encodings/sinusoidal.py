"""Sines and cosines of the position, added to the inputs (Vaswani 2017, arXiv:1706.03762)."""

import torch
from torch import nn

from ropewalk.harness.encodings.types import Shape, sinusoids


class Encoding(nn.Module):
    """Section 3.5: channels 2i and 2i+1 are sin and cos of position / 10000^(2i/width)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.width

    def inputs(self, embedded: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Add the table's rows to the embeddings, which are multiplied by sqrt(width) before."""
        scaled: torch.Tensor = embedded * self.width**0.5
        return scaled + sinusoids(positions, self.width, embedded.dtype)
