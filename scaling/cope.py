"""CoPE: the slow channels fade out, or stop turning, on top of a method (arXiv:2602.05258)."""

from dataclasses import replace
from typing import Literal

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import Frequencies, Method, Rope, frequencies_on

CODE = "hrlics/CoPE"  # of the authors, on GitHub

TRAINING = "the authors train on with it, at a base of 10 million"


def frequencies(
    rope: Rope,
    length: int,
    *,
    clip: Literal["soft", "hard"] = "soft",
    onset: int | None = None,
    on: Method = none.frequencies,
) -> Frequencies:
    """Return a method's frequencies; those from channel ``onset`` on get a falling weight.

    With ``soft``, the weight is half a cosine over the channel index: 1 at the onset and 0 at the
    slowest channel. With ``hard``, it is 0 for all of these channels. Channels count from 0. An
    unset onset is the first channel whose wavelength exceeds the trained window. ``on`` is the
    underlying method, whose attention factor is kept. The weights are the same at every length, so
    the method is not ``none`` at stretch 1.

    The numbers are those of the authors' code, hrlics/CoPE, for their onset: 44 of 64 for Llama 3
    at base 10 million, trained further at 64k, where 37 channels complete a turn in the window.
    They measure it after that training, and beyond its length with YaRN on top. Differs from the
    paper's equation, whose cosine is over the frequency and not over the index.
    """
    if clip not in ("soft", "hard"):
        raise ValueError(f"clip is soft or hard, got {clip}")
    inner = frequencies_on(on, rope, length)
    pairs = len(inner.inv_freq)
    first = int((rope.turns() >= 1).sum()) if onset is None else onset
    if not 0 <= first <= pairs:
        raise ValueError(f"onset must be a channel from 0 to {pairs}, got {onset}")
    weights = torch.zeros(pairs - first)
    if clip == "soft":
        weights = 0.5 * (1.0 + torch.cos(torch.linspace(0.0, torch.pi, pairs - first)))
    faded = torch.cat([inner.inv_freq[:first], inner.inv_freq[first:] * weights])
    return replace(inner, inv_freq=faded)
