"""Jet-Long: true positions near, far ones grouped, or at yarn's frequencies (arXiv:2607.07740)."""

import math
from dataclasses import replace
from typing import Literal

import torch

from ropewalk.scaling import none
from ropewalk.scaling._ramp import bounds
from ropewalk.scaling.rerope import beyond, window_of
from ropewalk.scaling.types import (
    Bands,
    Frequencies,
    Method,
    Rope,
    Window,
    by_distance,
    frequencies_on,
)

CODE = "jet-ai-projects/Jet-Long"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    window: Window = None,
    far: Literal["grouped", "ramped"] = "grouped",
    group: int | None = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return true positions up to a distance of ``window`` tokens, and others beyond it.

    - ``grouped`` uses floor(m/G) - floor(n/G) with G = ceil(length / trained window), so that no
      position exceeds the trained window. A given ``group`` is G at every length, as it is served.
    - ``ramped`` continues every channel beyond the window at yarn's frequency for the factor
      s = (length - window) / (trained window - window), and multiplies all logits by
      0.1 ln(s) + 1.

    Without a group, both leave the model unchanged up to the trained length. ``window`` is by
    default a 16th of the trained window, as the authors' 2048 of 32768. ``on`` is the method whose
    frequencies are used. ``on`` and ``group`` apply only to ``grouped``.

    The numbers are those of jet-ai-projects/Jet-Long (jetlong and jetlong_freq) in prefill and in
    decoding. They were not compared with the text of the paper, which was not available.
    """
    near = window_of(rope, max(1, rope.trained_length // 16) if window is None else window)
    frequencies = frequencies_on(on, rope, length)
    if far not in ("grouped", "ramped"):
        raise ValueError(f"far is grouped or ramped, got {far}")
    size = math.ceil(length / rope.trained_length) if group is None else group
    if size < 1:
        raise ValueError(f"group must be 1 or more, got {group}")
    if far == "grouped":
        grouped = torch.arange(length) // size
        return beyond(length, frequencies, near + 1, query=grouped, key=grouped)
    if on is not none.frequencies or group is not None:
        raise ValueError(
            "far=ramped has yarn's frequencies and no groups; leave out on and group, or far"
        )
    return frequencies if length <= rope.trained_length else _ramped(rope, length, near)


def _ramped(rope: Rope, length: int, near: int) -> Bands | Frequencies:
    """Return the model's own frequencies up to ``near`` tokens, and lower ones beyond."""
    if near >= rope.trained_length:
        raise ValueError(f"window must be below {rope.trained_length} tokens, got {near}")
    s = (length - near) / (rope.trained_length - near)
    first, last = bounds(rope, 1.0, 32.0, truncate=True)
    last = min(last, rope.rotary_dim // 2 - 1)
    index = torch.arange(rope.rotary_dim // 2, dtype=torch.float32)
    ramp = ((index - first) / max(last - first, 0.001)).clamp(0, 1)
    own = rope.inv_freq()
    slowed = Frequencies(own - own * ramp * (1 - 1 / s))
    query = torch.arange(length) - near
    phase = near * own.double()
    parts = (
        by_distance(length, Frequencies(own), 0, near + 1),
        replace(by_distance(length, slowed, near + 1, query=query), phase=phase),
    )
    heat = torch.full((length,), 0.1 * math.log(s) + 1.0, dtype=torch.float64)
    return Bands(length, parts, heat).plainest()
