"""STRING: far relative positions shifted down over the little-trained ones (arXiv:2410.18745)."""

import torch

from ropewalk.scaling import none
from ropewalk.scaling.rerope import beyond
from ropewalk.scaling.types import Bands, Frequencies, Method, Rope, Window, frequencies_on

CODE = "HKUNLP/STRING"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    shift: Window = None,
    local: int | None = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return relative positions distance - shift + local from a distance of ``shift`` on.

    ``shift`` is in tokens, by default a third of the trained window. ``local`` is by default 128,
    at most a 32nd of the window. For a window of 131072, the authors use a quarter to two fifths
    and 128 to 512. ``on`` is the method whose frequencies are used. The method is meant to use the
    trained window better: beyond window + shift - local tokens, relative positions still leave it.

    Differs from the authors' code, which also scales cos and sin by 0.1 ln 2 + 1. A prompt there
    attends twice to the key at a distance of exactly ``shift``, at both positions.
    """
    away = rope.trained_length // 3 if shift is None else shift
    kept = min(128, rope.trained_length // 32) if local is None else local
    if not 0 <= kept <= away or away < 1:
        raise ValueError(
            f"local and shift must be 0 <= local <= shift tokens, got {kept} and {away}"
        )
    frequencies = frequencies_on(on, rope, length)
    query = torch.arange(length) - away + kept
    return beyond(length, frequencies, away, query=query)
