"""Self-Extend: true positions up to a window, floored to groups beyond it (arXiv:2401.01325)."""

import torch

from ropewalk.scaling import none
from ropewalk.scaling.rerope import beyond, window_of
from ropewalk.scaling.types import Bands, Frequencies, Method, Rope, Window, frequencies_on

CODE = "datamllab/LongLM"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    window: Window = None,
    group: int | None = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return relative positions floor(m/G) - floor(n/G) + W - floor(W/G) beyond W (equation 4).

    ``window`` W is in tokens, by default a quarter of the trained window. An unset ``group`` G is
    the smallest that keeps W + (length - W) / G within two thirds of the trained window. This is
    the authors' rule of thumb, a half to two thirds. Inside the trained window G is 1. ``on`` is
    the method whose frequencies are used.

    Differs from the authors' code: there W/G is not floored where W is no multiple of G.
    """
    near = window_of(rope, window)
    size = _group(rope, length, near, group)
    frequencies = frequencies_on(on, rope, length)
    grouped = torch.arange(length) // size
    return beyond(length, frequencies, near, query=grouped + near - near // size, key=grouped)


def _group(rope: Rope, length: int, near: int, group: int | None) -> int:
    if group is None:
        room = 2 * rope.trained_length - 3 * near  # in thirds of a token, as whole numbers
        if length <= rope.trained_length:
            return 1
        if room <= 0:
            raise ValueError(
                f"window {near} is two thirds of {rope.trained_length} or more; set group"
            )
        return -(-3 * (length - near) // room)
    if group < 1:
        raise ValueError(f"group must be 1 or more, got {group}")
    return group
