"""Dual chunk attention: positions restart in every chunk, capped between (arXiv:2402.17463)."""

import torch

from scaling import none
from scaling.types import Band, Bands, Frequencies, Method, Rope, Window, frequencies_on


def bands(
    rope: Rope,
    length: int,
    *,
    chunk: Window = None,
    largest: Window = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return the three attentions of section 3: within a chunk, to the one before, to all earlier.

    Keys have the position n mod ``chunk``. Queries have m mod chunk for keys of their own chunk,
    min(m mod chunk + chunk, ``largest``) for the previous chunk, and ``largest`` for earlier ones.
    By default ``largest`` is three quarters of the trained window and ``chunk`` is ``largest``
    minus an eighth of the window, as in the authors' code; their script for the paper's table
    subtracts a quarter (``chunk=2048,largest=3072`` of 4096); the paper's text has ``chunk`` = 3/4
    of the window and ``largest`` = the window minus 1. ``on`` is the method whose
    frequencies are used. A context of one chunk is unchanged; a longer one is changed, also inside
    the trained window.

    Differs from the authors' code: it also scales cos and sin by 0.05 ln(length / window) + 1
    (not in the paper's results); its files for Qwen and for decoding leave a 16th, not an eighth.
    """
    cap = 3 * rope.trained_length // 4 if largest is None else largest
    size = cap - rope.trained_length // 8 if chunk is None else chunk
    if not 1 <= size <= cap < rope.trained_length:
        raise ValueError(
            f"chunk and largest must be 1 <= chunk <= largest < {rope.trained_length} tokens, "
            f"got {size} and {cap}"
        )
    frequencies = frequencies_on(on, rope, length)
    here = torch.arange(length)
    key, began = here % size, here // size * size
    before = (began - size).clamp(min=0)
    parts = (
        (began, here + 1, key),
        (before, began, (key + size).clamp(max=cap)),
        (torch.zeros_like(here), before, torch.full((length,), cap)),
    )
    bands = (Band(a, b, query.double(), key.double(), frequencies) for a, b, query in parts)
    return Bands(length, tuple(bands)).plainest()
