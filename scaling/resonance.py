"""Resonance RoPE: wavelengths rounded to whole tokens, on top of a method (arXiv:2403.00071)."""

from __future__ import annotations

import math

import torch

from scaling import none
from scaling.types import Frequencies, Method, Rope, frequencies_on

TRAINING = "the authors train or fine-tune with it"


def frequencies(rope: Rope, length: int, *, on: Method = none.frequencies) -> Frequencies:
    """Return another method's frequencies, each with the nearest wavelength in whole tokens.

    ``on`` is a method, with options of its own if need be (``on=yarn:factor=8+beta_fast=16``); its
    attention factor is kept. Wavelengths are rounded at every length: not ``none`` at stretch 1.

    Differs from the authors' code: it computes one wavelength of angles and repeats it; here an
    angle is position * frequency, which float32 rounds by up to 0.0032 radians at 32768 tokens.
    """
    inner = frequencies_on(on, rope, length)
    wavelengths = torch.round(2 * math.pi / inner.inv_freq)  # of a channel at rest: inf, stays so
    return Frequencies(2 * math.pi / wavelengths, inner.attention_factor)
