"""Cutting bands into pieces: every pair once, and few pieces for what is published."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.harness.patching import tiles
from ropewalk.harness.patching.tiles import NOTHING, Merged, Piece, attend, pieces


def covered(found: list[Piece], rows: int, keys: int) -> torch.Tensor:
    """Return how often every pair is in the pieces, by a loop over each of them."""
    counts = torch.zeros(rows, keys, dtype=torch.int64)
    for piece in found:
        for i, row in enumerate(range(*piece.rows)):
            for j, key in enumerate(range(*piece.keys)):
                counts[row, key] += {"all": True, "lower": j <= i, "upper": j >= i}[piece.shape]
    return counts


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=24))
def test_pieces_are_every_pair_once(bounds):
    first = torch.tensor([min(pair) for pair in bounds])
    end = torch.tensor([max(pair) for pair in bounds])
    keys = torch.arange(12)
    wanted = (keys >= first[:, None]) & (keys < end[:, None])
    assert torch.equal(covered(pieces(first, end), len(bounds), 12), wanted.long())


ROWS, WIDTH = 50, 16


def dense(q, k, v, met, scale, softcap=None):
    """Return attention over the pairs that are met, by one softmax."""
    scores = (q @ k.mT) * scale
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    return scores.masked_fill(~met, -torch.inf).softmax(-1) @ v


def tensors(dtype: torch.dtype, value: int = WIDTH) -> list[torch.Tensor]:
    torch.manual_seed(0)
    widths = (WIDTH, WIDTH, value)
    return [torch.randn(2, 3, ROWS, width, dtype=dtype) for width in widths]


def split(window: int) -> tuple[torch.Tensor, list[Piece]]:
    """Return the causal pairs, cut at a distance into two bands, and their pieces."""
    here = torch.arange(ROWS)
    far = (here + 1 - window).clamp(min=0)
    cut = pieces(far, here + 1) + pieces(torch.zeros_like(far), far)
    return torch.ones(ROWS, ROWS, dtype=torch.bool).tril(), cut


@pytest.mark.parametrize("width", [4, WIDTH])
@pytest.mark.parametrize("window", [1, 2, 7, 49, 50])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_pieces_are_merged_into_one_softmax(window, softcap, width):
    q, k, v = tensors(torch.float64, width)
    met, cut = split(window)
    merged = Merged.empty(q, width)
    attend(merged, q, k, v, cut, 0.3, softcap)
    torch.testing.assert_close(merged.values, dense(q, k, v, met, 0.3, softcap), rtol=0, atol=1e-12)


def test_tiles_are_the_fused_kernel(monkeypatch):
    monkeypatch.setattr(tiles, "SCORES", 8)
    q, k, v = tensors(torch.float64)
    met, cut = split(20)
    merged = Merged.empty(q, WIDTH)
    attend(merged, q, k, v, cut, 0.3, 1e9)  # a cap so high that it does nothing
    torch.testing.assert_close(merged.values, dense(q, k, v, met, 0.3), rtol=0, atol=1e-7)


def test_a_row_without_a_pair_is_zero():
    """Never NaN, which would poison the layers above."""
    q, k, v = tensors(torch.float32)
    merged = Merged.empty(q, WIDTH)
    attend(merged, q, k, v, [Piece((10, 20), (0, 5), "all")], 0.3, None)
    assert bool((merged.values[:, :, :10] == 0).all())
    assert bool(torch.isfinite(merged.values).all())
    assert bool((merged.lse[:, :, 20:] == NOTHING).all())


def test_bfloat16_is_merged_in_float32():
    """The sums of many pieces lose no more than the inputs' own rounding."""
    q, k, v = tensors(torch.bfloat16)
    met, cut = split(2)
    merged = Merged.empty(q, WIDTH)
    attend(merged, q, k, v, cut, 0.3, None)
    assert merged.values.dtype == torch.float32
    wanted = dense(q.float(), k.float(), v.float(), met, 0.3)
    torch.testing.assert_close(merged.values, wanted, rtol=0, atol=2e-2)
