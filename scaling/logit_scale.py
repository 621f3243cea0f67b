"""A constant scale of attention logits, as for layers without rotation (arXiv:2404.12224)."""

from dataclasses import replace
from typing import Annotated

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import Bands, Frequencies, Method, Range, Rope, rotation_on

CODE = "AntNLP/nope_head_scale"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    scale: Annotated[float, Range(1.0, 2.0)] = 1.0,
    layers: str = "all",
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return a method with all attention logits multiplied by ``scale``, at every position.

    The softmax scale of DeepSeek, Kimi K2 and other models of latent attention is mu^2 with
    mu = 0.1 * ln(factor) + 1: for a factor of 8 it is
    ``logit_scale:scale=1.4591,on=yarn:factor=8+attention_factor=1``. ``layers`` are those of
    ``log_n``. ``on`` is any method, including one that moves positions.

    Differs from the paper: it searches a scale for the length; its scales by head need training.
    """
    rotation = rotation_on(on, rope, length)
    if layers == "all" and rope.rotary_dim and isinstance(rotation, Frequencies):
        return replace(rotation, logit_scale=rotation.logit_scale * scale)
    whole = torch.full((length,), scale, dtype=torch.float64)
    return rotation.as_bands(length).scaled(whole, layers).plainest()
