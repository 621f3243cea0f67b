"""ReRoPE: relative positions are true up to a window, and capped there (Su, kexue.fm/9708)."""

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import (
    Bands,
    Frequencies,
    Method,
    Rope,
    Window,
    by_distance,
    frequencies_on,
)

CODE = "bojone/rerope"  # of the authors, on GitHub


def bands(
    rope: Rope, length: int, *, window: Window = None, on: Method = none.frequencies
) -> Bands | Frequencies:
    """Return relative positions min(distance, window).

    ``window`` is in tokens, by default a quarter of the trained window, as in the author's best
    table (1024 of Llama-2's 4096). ``on`` is the method whose frequencies are used. The model
    changes inside the trained window too: a distance beyond ``window`` is capped there as well.

    Differs from the author's code: its window is 512 of 4096, and it also scales queries by log n,
    which is ``log_n:on=rerope`` here, so that each can be measured separately.
    """
    near = window_of(rope, window)
    frequencies = frequencies_on(on, rope, length)
    far, zero = torch.full((length,), near), torch.zeros(length)
    return beyond(length, frequencies, near, query=far, key=zero)


def window_of(rope: Rope, window: int | None) -> int:
    """Return the window in tokens, a quarter of the trained one where it is unset."""
    if window is None:
        return max(1, rope.trained_length // 4)
    if window < 1:
        raise ValueError(f"window must be 1 token or more, got {window}")
    return window


def beyond(
    length: int,
    frequencies: Frequencies,
    window: int,
    *,
    query: torch.Tensor | None = None,
    key: torch.Tensor | None = None,
) -> Bands | Frequencies:
    """Return true positions at distances below ``window`` tokens, and others from there on.

    ``query`` and ``key`` are those others by token, ``(length,)``; unset, the true ones.
    """
    near = by_distance(length, frequencies, 0, window)
    far = by_distance(length, frequencies, window, query=query, key=key)
    return Bands(length, (near, far)).plainest()
