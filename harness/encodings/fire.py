"""FIRE: a learned function of log distance over log position (Li 2024, arXiv:2310.04418)."""

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from ropewalk.harness.encodings.types import Places, Shape


class Encoding(nn.Module):
    """Equation 4: f(ψ(i-j) / ψ(max(L, i))), ψ(x) = log(c x + 1), f a network; each layer's own.

    L is learned from a quarter of the window on, as the paper's 512 of 2048, c from 0.1 on.

    ``held`` is not in the paper: positions past the window count as its last, and distances longer
    than the window as its longest, so that every share has occurred in training.
    """

    copies = 17  # arrays of one number per head and pair in memory at once

    def __init__(self, shape: Shape, *, hidden: int = 32, held: bool = False) -> None:
        super().__init__()
        if hidden < 1:
            raise ValueError(f"hidden must be 1 or more, got {hidden}")
        self.window, self.held = shape.window, held
        self.networks = nn.ModuleList(
            nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, shape.heads))
            for _ in range(shape.layers)
        )
        self.c = nn.Parameter(torch.full((shape.layers,), 0.1))
        self.threshold = nn.Parameter(torch.full((shape.layers,), 0.25))  # L, in windows

    def scores(self, layer: Any, _: Any, __: Any, places: Places) -> torch.Tensor:
        """Return the bias of every pair, ``(heads, queries, keys)``."""
        index, wide = layer.layer_idx, torch.promote_types(self.c.dtype, torch.float32)
        c, least = self.c[index].to(wide).abs(), self.threshold[index].to(wide).abs() * self.window
        query, distance = places.query[:, None], places.distance
        if self.held:
            query, distance = (of.clamp(max=self.window - 1) for of in (query, distance))
        longest = torch.maximum(query.to(c.dtype), least)
        share = (c * distance + 1).log() / ((c * longest + 1).log() + 1e-6)
        weights = {name: part.to(wide) for name, part in self.networks[index].named_parameters()}
        bias: torch.Tensor = functional_call(self.networks[index], weights, (share[..., None],))
        return bias.permute(2, 0, 1)
