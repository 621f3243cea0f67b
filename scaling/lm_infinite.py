"""LM-Infinite: attention to the first tokens and the last window only (arXiv:2308.16137)."""

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import (
    Band,
    Bands,
    Frequencies,
    Method,
    Rope,
    Window,
    by_distance,
    frequencies_on,
)

CODE = "Glaciohound/LM-Infinite"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    sinks: int = 10,
    window: Window = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return the lambda-shaped attention of section 4: relative positions min(distance, window).

    A query attends to keys at a distance below ``window`` (tokens, by default the trained window).
    It also attends to the first ``sinks`` tokens of the context (the paper: 10 to 100) as if they
    were ``window`` away. Keys in between are not attended to, so nothing there can be retrieved.
    ``on`` is the method whose frequencies are used. The re-introduction of the top-k keys (section
    4.3) is not implemented.
    """
    near = rope.trained_length if window is None else window
    query = torch.full((length,), float(near), dtype=torch.float64)
    key = torch.zeros(length, dtype=torch.float64)
    return sinks_and_window(sinks, near, query, key, frequencies_on(on, rope, length))


def sinks_and_window(
    sinks: int, near: int, query: torch.Tensor, key: torch.Tensor, frequencies: Frequencies
) -> Bands | Frequencies:
    """Return attention to the last ``near`` tokens by distance, and to the first ``sinks``.

    For the latter ``query`` and ``key`` are the positions, float64 ``(length,)``.
    """
    if near < 1 or sinks < 0:
        raise ValueError(f"window must be 1 or more and sinks 0 or more, got {near} and {sinks}")
    length = len(query)
    end = (torch.arange(length) + 1 - near).clamp(min=0, max=sinks)
    first = Band(torch.zeros_like(end), end, query, key, frequencies)
    return Bands(length, (by_distance(length, frequencies, 0, near), first)).plainest()
