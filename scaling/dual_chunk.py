"""Dual chunk attention: positions restart in every chunk, capped between (arXiv:2402.17463)."""

import math
from typing import Literal

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import Band, Bands, Frequencies, Method, Rope, Window, frequencies_on

CODE = "HKUNLP/ChunkLlama"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    chunk: Window = None,
    largest: Window = None,
    form: Literal["chunkllama", "qwen"] = "chunkllama",
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return the three attentions of section 3: within a chunk, to the one before, to all earlier.

    Keys have the position n mod ``chunk``. Queries have three positions: m mod chunk for keys of
    their own chunk, min(m mod chunk + chunk, ``largest``) for the previous chunk, and ``largest``
    for earlier chunks. ``on`` is the method whose frequencies are used. A context of one chunk is
    unchanged. A longer one is changed, also inside the trained window.

    By default ``largest`` is three quarters of the trained window, and ``chunk`` is ``largest``
    minus an eighth of the window, as in the authors' code. Their script for the paper's table
    subtracts a quarter (``chunk=2048,largest=3072`` of 4096). In the paper's text, ``chunk`` is
    3/4 of the window and ``largest`` is the window minus 1.

    ``form=qwen`` is the method as vLLM and SGLang serve Qwen2.5-1M and Qwen3-2507 (arXiv:2501.15383
    and dual_chunk_flash_attn.py). ``largest`` is by default the trained window (their
    ``chunk_size``), and ``chunk`` is ``largest`` minus a 32nd of it (their ``local_size``). Earlier
    chunks have min(2 * chunk - 1, ``largest``). All logits are multiplied by
    max(1, 0.1 ln(length / trained window) + 1)^2. The largest relative position is one past those
    seen in training.

    Differs from the authors' code: it also scales cos and sin by 0.05 ln(length / window) + 1
    (not in the paper's results). Its files for Qwen and for decoding leave a 16th, not an eighth.
    Differs from vLLM and SGLang in decoding: there a cached key keeps the factor of the length at
    which it was cached, or none. Here all keys have the factor of the whole context.
    """
    if form not in ("chunkllama", "qwen"):
        raise ValueError(f"form is chunkllama or qwen, got {form}")
    qwen, window = form == "qwen", rope.trained_length
    cap = (window if qwen else 3 * window // 4) if largest is None else largest
    local = max(1, window // 32) if qwen else window // 8
    size = cap - local if chunk is None else chunk
    if not 1 <= size <= cap <= window - (not qwen):
        most = f"<= {window}" if qwen else f"< {window}"
        raise ValueError(
            f"chunk and largest must be 1 <= chunk <= largest {most} tokens, got {size} and {cap}"
        )
    frequencies = frequencies_on(on, rope, length)
    here = torch.arange(length)
    key, began = here % size, here // size * size
    before = (began - size).clamp(min=0)
    farthest = min(2 * size - 1, cap) if qwen else cap
    parts = (
        (began, here + 1, key),
        (before, began, (key + size).clamp(max=cap)),
        (torch.zeros_like(here), before, torch.full((length,), farthest)),
    )
    bands = (Band(a, b, query.double(), key.double(), frequencies) for a, b, query in parts)
    result = Bands(length, tuple(bands))
    if qwen:
        heat = (0.1 * math.log(rope.stretch(length)) + 1) ** 2
        result = result.scaled(torch.full((length,), heat, dtype=torch.float64))
    return result.plainest()
