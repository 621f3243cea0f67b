"""Resonance RoPE: wavelengths rounded to whole tokens, on top of a method (arXiv:2403.00071)."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch

from scaling._types import Frequencies, Rope


def frequencies(rope: Rope, length: int, *, on: str = "none") -> Frequencies:
    """Return another method's frequencies, each with the nearest wavelength in whole tokens.

    ``on`` names a method of this folder; its options are the defaults, and its attention factor is
    kept. The wavelengths are rounded at every length: not ``none`` at stretch 1.

    Differs from the authors' code: it computes one wavelength of angles and repeats it; here an
    angle is position * frequency, which float32 rounds by up to 0.0032 radians at 32768 tokens.
    """
    methods = _methods()
    if on not in methods:
        message = f"on must name a method ({', '.join(methods)}), got {on!r}"
        raise ValueError(message)
    inner = methods[on](rope, length)
    wavelengths = torch.round(2 * math.pi / inner.inv_freq)  # of a channel at rest: inf, stays so
    return Frequencies(2 * math.pi / wavelengths, inner.attention_factor)


def _methods() -> dict[str, Callable[..., Frequencies]]:
    """Return the other methods of this folder that are frequencies, by name."""
    own = Path(__file__)
    names = sorted(path.stem for path in own.parent.glob("[!_]*.py") if path.stem != own.stem)
    modules = {name: vars(import_module(f"scaling.{name}")) for name in names}
    return {name: found["frequencies"] for name, found in modules.items() if "frequencies" in found}
