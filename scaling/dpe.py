"""DPE: far positions grouped by a size for each group of channels (arXiv:2504.18857)."""

import math
from typing import Annotated

import torch

from ropewalk.scaling import none
from ropewalk.scaling._files import NORMS, read_heads
from ropewalk.scaling.types import (
    Band,
    Bands,
    Frequencies,
    Method,
    Range,
    Rope,
    Window,
    by_distance,
    frequencies_on,
)

CODE = "LuLuLuyi/DPE"  # of the authors, on GitHub

Group = Annotated[int | None, Range(0.25, 4.0, log=True, of="stretch")]
GROUPS = 8  # groups of channel pairs, the fastest first


def bands(
    rope: Rope,
    length: int,
    *,
    g1: Group = None,
    g2: Group = None,
    g3: Group = None,
    g4: Group = None,
    g5: Group = None,
    g6: Group = None,
    g7: Group = None,
    g8: Group = None,
    window: Window = None,
    heads: str | None = None,
    top: int | None = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return Self-Extend's positions with a group size for each eighth of the channel pairs.

    Beyond a distance of ``window`` tokens, the channel pairs of an eighth with the size G are
    rotated to floor(m/G) - floor(n/G) + W - W/G. ``window`` W is by default 1024 tokens, at most
    an eighth of the trained window. ``on`` is the method whose frequencies are used.

    ``g1`` is the size of the fastest eighth and ``g8`` that of the slowest. An unset size is twice
    the stretch, where the authors' search begins, and 1 inside the trained window. ``ropewalk tune
    --scaling dpe --task niah`` searches the sizes. The authors' sizes for 128k are:

    - 2 8 2 8 32 32 32 4 for Llama 3 8B Instruct, from 8k;
    - 2 32 32 2 2 2 2 1 for Llama 3.1 8B;
    - 4 16 2 16 32 16 16 2 for Mistral 7B v0.2;
    - 2 16 8 8 32 8 2 4 for Qwen2.5 7B.

    ``top`` is the number of channel pairs of each head that move: those with the largest mean
    product of the norms of query and key. The others keep the true distance. ``ropewalk
    calibrate`` writes these means to the file ``heads``. With this file, ``top`` is by default
    three quarters (the authors: 48 of 64, and 32 for RULER).

    Differs between the authors' files (LuLuLuyi/DPE): the README's sizes and those of its
    predictions are 4 4 2 16 32 32 16 128, not the config's. The README does not select channels.
    The script that selects them repeats keys 7 times, which fits Qwen2.5 alone. Decoding there
    rounds W/G down; it is the same for sizes that divide W.
    """
    near = min(1024, max(1, rope.trained_length // 8)) if window is None else window
    default = math.ceil(2 * rope.stretch(length)) if length > rope.trained_length else 1
    sizes = [default if g is None else g for g in (g1, g2, g3, g4, g5, g6, g7, g8)]
    if near < 1 or min(sizes) < 1:
        raise ValueError(f"window and group sizes must be 1 or more, got {near} and {sizes}")
    frequencies = frequencies_on(on, rope, length)
    pairs = len(frequencies.inv_freq)
    different = sorted({1, *sizes})  # a column of positions for each size; 1 is the true position
    group = torch.arange(pairs) * GROUPS // pairs
    column = torch.tensor([different.index(size) for size in sizes])[group]
    if heads is not None:
        column = torch.where(_moved(rope, heads, top), column, 0)
    elif top is not None:
        raise ValueError("top needs heads=FILE, which ropewalk calibrate writes")
    here = torch.arange(length)
    size = torch.tensor(different)
    key = (here[:, None] // size).double()
    query = key + near - near / size.double()
    nearby = by_distance(length, frequencies, 0, near)
    far = by_distance(length, frequencies, near)
    moved = Band(far.first, far.end, query, key, frequencies, column=column)
    return Bands(length, (nearby, moved)).plainest()


def _moved(rope: Rope, heads: str, top: int | None) -> torch.Tensor:
    """Return which channel pairs of each head move, bool ``(layers, heads, pairs)``."""
    norms = read_heads(heads, NORMS, rope)
    pairs = norms.shape[-1]
    count = 3 * pairs // 4 if top is None else top
    if not 1 <= count <= pairs:
        raise ValueError(f"top must be from 1 to {pairs} channel pairs, got {top}")
    best = norms.argsort(dim=-1, descending=True, stable=True)[..., :count]
    return torch.zeros(norms.shape, dtype=torch.bool).scatter_(-1, best, value=True)
