"""Ms-PoE: each head's positions divided by a ratio of its own, by rank (arXiv:2403.04797)."""

import math

import torch

from ropewalk.scaling import none
from ropewalk.scaling._files import OUTLIERS, read_heads
from ropewalk.scaling.types import Band, Bands, Frequencies, Method, Rope, frequencies_on

CODE = "VITA-Group/Ms-PoE"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    heads: str | None = None,
    low: float = 1.2,
    high: float = 1.8,
    first_layer: int = 2,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return positions divided by low + (high - low) j / H, for the head of rank j of H.

    Heads are ranked by position-awareness, the most aware head first. The position-awareness of a
    head is the share of keys to which its last query gives more than three times the mean
    attention, without rotation. ``ropewalk calibrate`` writes these shares, as means over
    documents, to the file ``heads``. Layers before ``first_layer`` (from 0) are unchanged. ``on``
    is the method whose frequencies are used.

    The method changes the model at every length. It is made for the middle of the window rather
    than for longer texts: it extends the window only by the least ratio, 1.2.

    Differs from the authors' code (VITA-Group/Ms-PoE), which ranks the heads anew for each prompt;
    here the ranks are fixed. The code indexes by argsort instead of by rank, which gives the
    inverse permutation: shares 0.1, 0.3, 0.2 are ranked 1, 2, 0 and not 2, 0, 1. Heads that share a
    key rotate it by the first one's ratio there, so that positions are not relative.
    """
    if heads is None:
        raise ValueError(
            "ms_poe ranks a model's heads: write the file with ropewalk calibrate, and give"
            " heads=FILE"
        )
    if not (1 <= low <= high and math.isfinite(high)) or first_layer < 0:
        raise ValueError(
            f"low and high must be 1 <= low <= high and first_layer 0 or more, got {low}, {high}"
            f" and {first_layer}"
        )
    shares = read_heads(heads, OUTLIERS, rope)
    rank = (-shares).argsort(stable=True, dim=1).argsort(dim=1)
    column = (rank + 1).masked_fill(torch.arange(rope.layers)[:, None] < first_layer, 0)
    ratios = low + (high - low) * torch.arange(rope.heads, dtype=torch.float64) / rope.heads
    here = torch.arange(length)
    position = here[:, None] / torch.cat((torch.ones(1), ratios))
    frequencies = frequencies_on(on, rope, length)
    pairs = len(frequencies.inv_freq)
    band = Band(
        torch.zeros_like(here),
        here + 1,
        position,
        position,
        frequencies,
        column=column[:, :, None].expand(-1, -1, pairs).contiguous(),
    )
    return Bands(length, (band,)).plainest()
