"""The plain rotary embedding at the model's base, without any scaling (arXiv:2104.09864)."""

from __future__ import annotations

from scaling.types import Frequencies, Rope


def frequencies(rope: Rope, length: int) -> Frequencies:
    """Return base^(-2i/d), whatever the length; a scaling the checkpoint ships is taken off."""
    return Frequencies(rope.inv_freq())
