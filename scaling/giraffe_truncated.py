"""Giraffe's truncated basis: slow channels turn at one fixed speed or stop (arXiv:2308.10882)."""

import math

import torch

from ropewalk.scaling.types import Frequencies, Rope

CODE = "abacusai/Long-Context"  # of the authors, on GitHub

TRAINING = "the authors fine-tune with it"


def frequencies(rope: Rope, length: int, *, cutoff: float | None = None) -> Frequencies:
    """Return the plain frequencies of the channels with a wavelength up to ``cutoff`` tokens.

    A wavelength up to 8 times the cutoff becomes 16 times the cutoff; channels with a longer one
    are not rotated. An unset cutoff is the trained length, so that a channel is kept if it makes a
    full turn in the window. It is the same at every length: not ``none`` at stretch 1.

    The paper does not state the bounds; 8 and 16 are those of the authors' code
    (abacusai/Long-Context, interpolate.py). They train with it.
    """
    if cutoff is None:
        cutoff = float(rope.trained_length)
    if not (math.isfinite(cutoff) and cutoff > 0):
        raise ValueError(f"cutoff must be a number of tokens above 0, got {cutoff}")
    slowest = 2 * math.pi / cutoff
    plain = rope.inv_freq()
    fixed = torch.full_like(plain, slowest / 16)
    moving = torch.where(plain < slowest, fixed, plain)
    return Frequencies(torch.where(plain < slowest / 8, torch.zeros_like(plain), moving))
