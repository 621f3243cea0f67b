"""StreamingLLM: sinks and a window, with positions counted in the cache (arXiv:2309.17453)."""

import torch

from ropewalk.scaling import none
from ropewalk.scaling.lm_infinite import sinks_and_window
from ropewalk.scaling.types import Bands, Frequencies, Method, Rope, Window, frequencies_on

CODE = "mit-han-lab/streaming-llm"  # of the authors, on GitHub


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
    here = torch.arange(length, dtype=torch.float64)
    place = here.clamp(max=sinks + near - 1)
    return sinks_and_window(sinks, near, place, here, frequencies_on(on, rope, length))
