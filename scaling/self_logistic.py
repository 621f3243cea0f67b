"""SELF: far positions in groups that grow with the position, logistically (arXiv:2505.17296)."""

import math

import torch

from ropewalk.scaling import none
from ropewalk.scaling.rerope import beyond, window_of
from ropewalk.scaling.types import Bands, Frequencies, Method, Rope, Window, frequencies_on

CODE = "alexeipc/SELF-LLM"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    window: Window = None,
    rate: float = 0.02,
    capacity: float = 33.0,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return true positions at distances below ``window``, W + G(m - W) - G(n) from there on.

    G(i) is the number of the group of token i. Token 0 is in group 0. From token 1 on, group x has
    floor(C / (1 + (C - 1) e^(-rx))) tokens, where r is the ``rate`` and C the ``capacity``. The
    authors' capacity is 33 for Mistral, Gemma and Phi, and 8 for Llama. ``window`` W is in tokens,
    by default a quarter of the trained window (the authors: 1024 of 4096). ``on`` is the method
    whose frequencies are used. A distance of more than ``window`` is changed inside the trained
    window too. Groups grow with the position in the text, not with the distance.

    The numbers are those of a prompt in the authors' code, alexeipc/SELF-LLM. Differs from its
    decoding, which reverses the far keys and takes the window for the capacity.
    """
    near = window_of(rope, window)
    if not (rate > 0 and 1 < capacity < 2**31):
        raise ValueError(f"rate must be above 0 and capacity above 1, got {rate} and {capacity}")
    frequencies = frequencies_on(on, rope, length)
    group = _groups(length, rate, capacity)
    query = near + group[(torch.arange(length) - near).clamp(min=0)]
    return beyond(length, frequencies, near, query=query, key=group)


def _groups(length: int, rate: float, capacity: float) -> torch.Tensor:
    """Return the group of every token, int64 ``(length,)``."""
    x = torch.arange(length, dtype=torch.float64)
    sizes = (capacity / (1 + (capacity - 1) * torch.exp(-rate * x))).floor()
    sizes = sizes.clamp(max=math.ceil(capacity) - 1)  # which it reaches by rounding alone
    ends = sizes.cumsum(0)  # the last token of each group
    return torch.searchsorted(ends, x.clamp(min=1))
