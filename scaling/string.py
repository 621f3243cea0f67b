"""STRING: far relative positions shifted down over the little-trained ones (arXiv:2410.18745)."""

from __future__ import annotations

import torch

from scaling import none
from scaling.types import Bands, Frequencies, Method, Rope, Window, beyond, frequencies_on


def bands(
    rope: Rope,
    length: int,
    *,
    shift: Window = None,
    local: int | None = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return relative positions distance - shift + local from a distance of ``shift`` on.

    ``shift`` is in tokens, by default a third of the trained window; ``local`` by default 128, at
    most a 32nd of the window (authors: a quarter to two fifths, and 128 to 512, of a window of
    131072). ``on`` is a method whose frequencies are used. It was made to use the trained window
    better: beyond window + shift - local tokens, relative positions leave the window here too.

    Differs from the authors' code: that also scales cos and sin by 0.1 ln 2 + 1; and a prompt meets
    the key at a distance of exactly ``shift`` twice there, at both positions, a decoded token once.
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
