"""A learned bias for every bucket of distances and head (T5: Raffel 2020, arXiv:1910.10683)."""

from typing import Any

import torch
from torch import nn

from ropewalk.harness.encodings.types import Places, Shape, bucket, check_buckets


class Encoding(nn.Module):
    """Section 2.1: half of the buckets are exact, half logarithmic; all layers share the biases.

    Differs from T5: content scores are divided by sqrt(d), which T5 puts into its initial weights.
    ``bias`` is stored divided by sqrt(d) too. A step of Adam, whose size is the learning rate, then
    changes a bias as much as a content score. Stored undivided it reaches 2 in the recipe's steps,
    and no head learns to attend to the previous token.
    """

    def __init__(self, shape: Shape, *, buckets: int = 32, farthest: int = 128) -> None:
        super().__init__()
        check_buckets(buckets, farthest)
        self.farthest = farthest
        self.root: float = shape.head_dim**0.5
        self.bias = nn.Parameter(torch.zeros(shape.heads, buckets))

    def scores(self, _: Any, __: Any, ___: Any, places: Places) -> torch.Tensor:
        """Return the bias of every pair, ``(heads, queries, keys)``."""
        return self.root * self.bias[:, bucket(places.distance, self.bias.shape[1], self.farthest)]
