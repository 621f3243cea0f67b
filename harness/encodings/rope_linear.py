"""Linear attention, rotary in the numerator alone (RoFormer, section 3.3, arXiv:2104.09864)."""

from typing import Any

import torch
from torch import nn

from ropewalk.harness.encodings.types import Angles, Places, Shape, rotated


class Encoding(nn.Module):
    """Equation 19 with φ = elu + 1: Σ (R φ(q))·(R φ(k)) v / Σ φ(q)·φ(k), sums over seen keys.

    The denominator is not rotated, and so positive. It is computed pair by pair, not by running
    sums: the same numbers, in quadratic time. There is no softmax to temper: the attention factor
    of a scaling method (yarn) multiplies the output by its square.
    """

    def __init__(self, shape: Shape, *, rotated: bool = True, base: float = 10_000.0) -> None:
        del shape
        super().__init__()
        if rotated:
            self.base = base

    def turn(
        self, query: torch.Tensor, key: torch.Tensor, angles: Angles | None, _: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return φ of queries and keys, rotated and unrotated, one beside the other."""
        both = []
        for given in (query, key):
            # elu + 1, without the sum that rounds to 0 below -6 in bfloat16 and so leads to 0 / 0.
            states = given.clamp(max=0).exp() + given.clamp(min=0)
            turned = states if angles is None else rotated(states, angles)
            both.append(torch.cat((turned, states), -1))
        return both[0], both[1]

    def attend(
        self, _: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, places: Places
    ) -> torch.Tensor:
        """Return the weighted values, ``(batch, heads, queries, head_dim)``."""
        (turned, plain), (keys, at_rest) = query.chunk(2, -1), key.chunk(2, -1)
        later = places.behind < 0
        above = (turned @ keys.mT).masked_fill(later, 0.0)
        below = (plain @ at_rest.mT).masked_fill(later, 0.0)
        return above @ value / below.sum(-1, keepdim=True)
