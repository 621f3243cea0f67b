"""Resonance RoPE: wavelengths rounded to whole tokens, on top of a method (arXiv:2403.00071)."""

import math
from dataclasses import replace

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import Frequencies, Method, Rope, frequencies_on

CODE = "sheryc/resonance_rope"  # of the authors, on GitHub

TRAINING = "the authors train or fine-tune with it"


def frequencies(rope: Rope, length: int, *, on: Method = none.frequencies) -> Frequencies:
    """Return another method's frequencies, each with the nearest wavelength in whole tokens.

    ``on`` is a method, with its own options (``on=yarn:factor=8+beta_fast=16``); its attention
    factor is kept. Wavelengths are rounded at every length: not ``none`` at stretch 1.

    Differs from the authors' code, which computes the angles of one wavelength and repeats them;
    here an angle is position * frequency, rounded in float32 by up to 0.0032 radians at 32768.
    """
    inner = frequencies_on(on, rope, length)
    wavelengths = torch.round(2 * math.pi / inner.inv_freq)  # inf for one that does not rotate
    return replace(inner, inv_freq=2 * math.pi / wavelengths)
