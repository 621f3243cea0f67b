"""LaMPE: far positions mapped into a span that depends on the length (ACL 2026, 2508.02308)."""

import math
from dataclasses import replace
from typing import Annotated, Literal

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import (
    Bands,
    Frequencies,
    Method,
    Range,
    Rope,
    by_distance,
    frequencies_on,
)

CODE = "scar-on/LaMPE"  # of the authors, on GitHub

# The fitted curve of a model: its trained window in tokens, a, b and c, and the span that its code
# has for less than 8192 tokens instead.
CURVES = {
    "llama2": (4096, 8.673006440952035e-05, -0.648012322406978, 2489.1055552214357, 1536),
    "llama3": (8192, 1.0493097327094324e-04, -2.466638011138158, 6204.409324666837, 1536),
    "mistral": (32768, 1.0493097327094324e-04, -2.466638011138158, 24576.0, 1536),
    "llama3.1": (131072, 4.505261149632588e-05, -2.788576860718702, 82358.52413056031, None),
}
SHORT = 8192
ATTENTION_FACTOR = 0.1 * math.log(2) + 1


def bands(
    rope: Rope,
    length: int,
    *,
    span: Annotated[int | None, Range(1 / 16, 3 / 4, log=True, of="window")] = None,
    curve: Literal["llama2", "llama3", "mistral", "llama3.1"] = "llama3",
    near: int | None = None,
    tail: int | None = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return three bands: true positions near and at the far corner, mapped ones between.

    The map is f(p) = floor(span * p / (length - 1)). The three bands are:

    - near: distances below ``near`` are true;
    - between: the query is at f(m) + near - 1 - f(near) and the key at f(n);
    - far: for distances of at least ``length`` - R, the key is at its own position and the query at
      the position that continues the map. R is the last position with f(R) = f(``tail``).

    The ``span`` in tokens follows the length: c / (1 + e^-(a * length + b)). The authors fitted the
    coefficients for four models (``curve``). For a window other than the published model's, lengths
    and spans are in units of the window, which is a guess. For such a model, search the span at two
    or more lengths with ``ropewalk tune --scaling lampe``.

    ``near`` is by default 512 tokens and ``tail`` 200 for a window of 8192, and proportionally less
    for a smaller one. ``on`` is the method whose frequencies are used. cos and sin are multiplied
    by 0.1 ln 2 + 1 at every length, so the method is not ``none`` inside the window. A context of
    less than 2 * ``near`` tokens keeps its positions.

    The numbers are those of decoding in the authors' code (scar-on/LaMPE, llama_cache1.py).
    Differs from its reading of a prompt, which attends twice to keys at a distance of exactly
    ``near`` and of exactly length - R. Its script for RULER has a fixed span and no far corner.
    """
    plain = frequencies_on(on, rope, length)
    frequencies = replace(plain, attention_factor=plain.attention_factor * ATTENTION_FACTOR)
    unit = min(1.0, rope.trained_length / 8192)
    close = max(1, int(512 * unit)) if near is None else near
    corner = max(1, int(200 * unit)) if tail is None else tail
    if close < 1 or corner < 0:
        raise ValueError(f"near must be 1 or more and tail 0 or more, got {close} and {corner}")
    if length < 2 * close:
        return frequencies
    width = _span(rope, length, curve) if span is None else span
    if width < 1:
        raise ValueError(f"span must be 1 token or more, got {width}")
    here = torch.arange(length)
    mapped = width * here // (length - 1)
    corner = min(corner, length - 1)
    last = int((mapped == mapped[corner]).nonzero()[-1])
    shift = close - 1 - int(mapped[close])
    far = length - 1 - last
    back = far - int(mapped[far]) - shift
    edge = max(close, length - last)
    return Bands(
        length,
        (
            by_distance(length, frequencies, 0, close),
            by_distance(length, frequencies, close, edge, query=mapped + shift, key=mapped),
            by_distance(length, frequencies, edge, query=here - back),
        ),
    ).plainest()


def _span(rope: Rope, length: int, curve: str) -> int:
    """Return the fitted span of a length, in tokens."""
    if curve not in CURVES:
        raise ValueError(f"curve is {', '.join(CURVES)}, got {curve}")
    window, a, b, c, short = CURVES[curve]
    unit = rope.trained_length / window
    tokens = length / unit
    if short is not None and tokens < SHORT:
        return int(short * unit)
    return int(unit * c / (1 + math.exp(-(a * tokens + b))))
