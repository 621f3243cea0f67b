"""Leaky ReRoPE: true relative positions up to a window, a factor slower beyond (kexue.fm/9708)."""

import math

import torch

from ropewalk.scaling import none
from ropewalk.scaling.rerope import beyond, window_of
from ropewalk.scaling.types import (
    Bands,
    Factor,
    Frequencies,
    Method,
    Rope,
    Window,
    frequencies_on,
)

CODE = "bojone/rerope"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    window: Window = None,
    factor: Factor = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return relative positions window + (distance - window) / factor beyond the window.

    ``window`` is in tokens, by default a quarter of the trained window. An unset ``factor`` is the
    smallest that keeps every relative position within the trained window, 1 inside it; an infinite
    factor would be ``rerope``. ``on`` is the method whose frequencies are used.

    Differs from the author's code: it also scales queries by log n (``log_n:on=leaky_rerope``), its
    window is 512 of 4096, and its factor is a constant, 16.
    """
    near = window_of(rope, window)
    slower = _factor(rope, length, near, factor)
    frequencies = frequencies_on(on, rope, length)
    key = torch.arange(length, dtype=torch.float64) / slower
    return beyond(length, frequencies, near, query=key + near - near / slower, key=key)


def _factor(rope: Rope, length: int, near: int, factor: float | None) -> float:
    if factor is None:
        if length <= rope.trained_length:
            return 1.0
        if near >= rope.trained_length:
            raise ValueError(
                f"window {near} leaves no room in {rope.trained_length} tokens; set factor"
            )
        return (length - near) / (rope.trained_length - near)
    if not (math.isfinite(factor) and factor >= 1):
        raise ValueError(f"factor must be 1 or more, got {factor}")
    return float(factor)
