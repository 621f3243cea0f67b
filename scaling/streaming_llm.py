"""StreamingLLM: sinks and a window, with positions counted in the cache (arXiv:2309.17453)."""

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

CODE = "mit-han-lab/streaming-llm"  # of the authors, on GitHub
YEAR = 2023


def bands(
    rope: Rope,
    length: int,
    *,
    sinks: int = 4,
    window: Window = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return attention to the first ``sinks`` and the last ``window`` tokens (section 3.2).

    A position is the place in a cache of these tokens: a query beyond it is at sinks + window - 1,
    and sink j at j. ``window`` is in tokens; by default the cache is the trained window. Keys in
    between are not attended to, so nothing there can be retrieved. ``on`` is the method whose
    frequencies are used. ``lm_infinite`` puts all sinks at one distance, the window.
    """
    near = rope.trained_length - sinks if window is None else window
    if near < 1 or sinks < 0:
        raise ValueError(f"window must be 1 or more and sinks 0 or more, got {near} and {sinks}")
    frequencies = frequencies_on(on, rope, length)
    here = torch.arange(length)
    first = Band(
        torch.zeros_like(here),
        (here + 1 - near).clamp(min=0, max=sinks),
        here.clamp(max=sinks + near - 1).double(),
        here.double(),
        frequencies,
    )
    return Bands(length, (by_distance(length, frequencies, 0, near), first)).plainest()
