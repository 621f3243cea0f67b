"""KERPLE: a learned logarithm or power of the distance (Chi 2022, arXiv:2205.09921)."""

from typing import Any, Literal

import torch
from torch import nn

from harness.encodings._types import Places, Shape

LEAST = 1e-2  # of r1 and r2 in the authors' code


class Encoding(nn.Module):
    """Equations 5 and 6: -r1 log(1 + r2 |m-n|), or -r1 |m-n|^r2; each layer's and head's."""

    def __init__(self, shape: Shape, *, kind: Literal["log", "power"] = "log") -> None:
        """Begin with r1 up to 2 and r2 up to 1, uniform, as the authors' code does."""
        super().__init__()
        self.kind = kind
        self.r1 = nn.Parameter(2 * torch.rand(shape.layers, shape.heads, 1, 1))
        self.r2 = nn.Parameter(torch.rand(shape.layers, shape.heads, 1, 1))

    def scores(self, layer: Any, _: Any, __: Any, places: Places) -> torch.Tensor:
        """Return what the distance takes from every score, ``(heads, queries, keys)``."""
        wide = torch.promote_types(self.r1.dtype, torch.float32)  # no distance is rounded
        r1, r2 = (part[layer.layer_idx].to(wide).clamp(min=LEAST) for part in (self.r1, self.r2))
        distance = places.distance.to(wide)
        if self.kind == "log":
            return -r1 * (1 + r2 * distance).log()
        return -r1 * distance.clamp(min=1e-6) ** r2.clamp(max=2)
