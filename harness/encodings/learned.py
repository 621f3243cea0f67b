"""A learned vector for every position, added to the inputs (GPT, BERT: arXiv:1810.04805)."""

import torch
from torch import nn

from ropewalk.harness.encodings.types import Shape


class Encoding(nn.Module):
    """A table with a row for every position of the trained window; beyond it there is none."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.table = nn.Embedding(shape.window, shape.width)
        nn.init.normal_(self.table.weight, std=0.02)

    def inputs(self, embedded: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Add the rows of the positions to the embeddings."""
        added: torch.Tensor = self.table(positions)
        return embedded + added
