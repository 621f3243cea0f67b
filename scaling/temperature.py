"""Llama 4's temperature: queries are scaled in steps of position, on top of a method (Meta)."""

import math

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import Bands, Frequencies, Method, Rope, rotation_on

CODE = "huggingface/transformers"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    scale: float = 0.1,
    floor: int | None = None,
    offset: int = 1,
    layers: str = "all",
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return a method with each query scaled by 1 + scale * ln(1 + floor((m + offset) / floor)).

    m counts from 0. ``floor`` is in tokens, by default the trained window (Llama 4: 8192). Llama 4
    has ``layers=unrotated``, those without a rotary embedding; Ministral 3 has ``offset=0``.
    ``layers`` are those of ``log_n``. ``on`` is any method, including one that moves positions.
    Inside the window it is that method alone, except for the last token at offset 1.
    """
    step = rope.trained_length if floor is None else floor
    if offset < 0:
        raise ValueError(f"offset must be 0 or more, got {offset}")
    if step < 1 or not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"floor must be 1 or more and scale 0 or more, got {step} and {scale}")
    here = torch.arange(offset, length + offset, dtype=torch.float64)
    growth = 1 + scale * (1 + (here / step).floor()).log()
    return rotation_on(on, rope, length).as_bands(length).scaled(growth, layers).plainest()
