"""Giraffe's power basis: every frequency times (1 - 2i/d)^power (arXiv:2308.10882)."""

import math
from typing import Annotated

import torch

from ropewalk.scaling.types import Frequencies, Range, Rope

CODE = "abacusai/Long-Context"  # of the authors, on GitHub

TRAINING = "the authors fine-tune with it"


def frequencies(
    rope: Rope, length: int, *, power: Annotated[float, Range(0.0, 1.0)] = 0.5
) -> Frequencies:
    """Return frequencies that are reduced more the slower they are; the fastest one is kept.

    Power 0 is ``none``; 0.5 is the one that the authors report and train with
    (abacusai/Long-Context). It is the same at every length: not ``none`` at stretch 1.
    """
    if not (math.isfinite(power) and power >= 0):
        raise ValueError(f"power must be 0 or more, got {power}")
    pairs = rope.rotary_dim // 2
    shares = 1 - torch.arange(pairs, dtype=torch.float32) / pairs
    return Frequencies(rope.inv_freq() * shares**power)
