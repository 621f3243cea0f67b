"""log-n: queries are scaled by the log of their position, on top of a method (kexue.fm/8823)."""

import math

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import Bands, Frequencies, Method, Rope, rotation_on

CODE = "bojone/rerope"  # of the authors, on GitHub


def bands(
    rope: Rope, length: int, *, layers: str = "all", on: Method = none.frequencies
) -> Bands | Frequencies:
    """Return a method with each query scaled by max(1, ln(m + 1) / ln(trained_length)).

    m counts from 0. ``layers`` is all, unrotated (those without a rotary embedding) or a number of
    first layers that are not scaled (2 in entropy-ABF, arXiv:2401.07004). ``on`` is any method,
    including one that moves positions. Inside the trained window it is that method alone.
    """
    here = torch.arange(1, length + 1, dtype=torch.float64)
    scale = (here.log() / math.log(rope.trained_length)).clamp(min=1)
    return rotation_on(on, rope, length).as_bands(length).scaled(scale, layers).plainest()
