"""KERPLE: a learned logarithm or power of the distance (Chi 2022, arXiv:2205.09921)."""

import math
from typing import Any, Literal

import torch
from torch import nn

from ropewalk.harness.encodings.types import Places, Shape

LEAST, MOST = 1e-2, 2.0  # of r1 and r2 in the authors' code, and of r2 as a power


class Encoding(nn.Module):
    """Equations 5 and 6: -r1 log(1 + r2 |m-n|), or -r1 |m-n|^r2; each layer's and head's."""

    def __init__(self, shape: Shape, *, kind: Literal["log", "power"] = "log") -> None:
        super().__init__()
        self.kind = kind
        ends = (2, 1) if kind == "log" else (1, 2)
        self.r1, self.r2 = (
            nn.Parameter(end * torch.rand(shape.layers, shape.heads, 1, 1)) for end in ends
        )

    def scores(self, layer: Any, _: Any, __: Any, places: Places) -> torch.Tensor:
        """Return what the distance takes from every score, ``(heads, queries, keys)``."""
        wide = torch.promote_types(self.r1.dtype, torch.float32)  # no distance is rounded
        both = (self.r1, math.inf), (self.r2, MOST if self.kind == "power" else math.inf)
        if self.training:  # as the authors do: beyond an end there is no gradient that leads back
            for part, most in both:
                part.data.clamp_(LEAST, most)
        r1, r2 = (part[layer.layer_idx].to(wide).clamp(LEAST, most) for part, most in both)
        distance = places.distance.to(wide)
        if self.kind == "log":
            return -r1 * (1 + r2 * distance).log()
        return -r1 * distance**r2
