"""GALI: positions interpolated greedily, scores blended between whole ones (arXiv:2502.02659)."""

from itertools import pairwise

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import Band, Bands, Frequencies, Method, Rope, frequencies_on

CODE = "adlnlp/Gali"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    window: int | None = None,
    chunk: int | None = None,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return positions in the trained window for every chunk of the context, keys blended.

    The first chunk is the trained window L, followed by chunks of ``chunk`` tokens. For a chunk
    that ends at T, all tokens so far get new positions. Let w be the ``window``, let
    G = ceil((T - w) / (L - w)), and let r be the least whole number with L - r + G r >= T. Then the
    first T - (L - r) tokens are at 0, 1/G, 2/G, … and the others at r … L - 1.

    A query at a fractional position is rotated to the next whole one. A score with a key between
    two whole positions is the linear blend of the scores with the key at both. One blended key
    gives exactly this score. ``window`` is by default 128 tokens and ``chunk`` 3000, at most a 64th
    and three eighths of the trained window. The first queries of a chunk may be at fractional
    positions. With a ``window`` of at least ``chunk`` tokens, all queries are at whole ones.
    ``on`` is the method whose frequencies are used. Inside the trained window the model is
    unchanged.

    Differs from the authors' code (adlnlp/Gali): no noise is added to interpolated scores. There it
    is Gaussian, unseeded, with a standard deviation of distance / T; and since positions are
    bfloat16, fractions and noise are lost from position 128 on. A chunk has 3000 tokens there for
    smaller windows too. A generated token is a chunk of its own there; here it is in the last
    chunk, which ends with the whole context.
    """
    trained = rope.trained_length
    local = min(128, trained // 64) if window is None else window
    step = max(1, min(3000, 3 * trained // 8)) if chunk is None else chunk
    if not 0 <= local < trained or step < 1:
        raise ValueError(
            f"window must be from 0 to {trained - 1} tokens and chunk 1 or more, got {local} and"
            f" {step}"
        )
    frequencies = frequencies_on(on, rope, length)
    edges = [0, *range(trained, length, step), length]
    parts = []
    for start, stop in pairwise(edges):
        at = _positions(stop, trained, local)
        rows = torch.arange(start, stop)
        query = at[start:].ceil()
        band = Band(torch.zeros_like(rows), rows + 1, query, at, frequencies, start, blended=True)
        parts.append(band)
    return Bands(length, tuple(parts)).plainest()


def _positions(stop: int, trained: int, local: int) -> torch.Tensor:
    """Return the position of every token up to ``stop``, float64 ``(stop,)``."""
    if stop <= trained:
        return torch.arange(stop, dtype=torch.float64)
    group = -(-(stop - local) // (trained - local))
    kept = -(-(stop - trained) // (group - 1))  # r
    interpolated = torch.arange(stop - (trained - kept), dtype=torch.float64) / group
    return torch.cat((interpolated, torch.arange(kept, trained, dtype=torch.float64)))
