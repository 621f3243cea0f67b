"""Cutting bands into pieces: every pair once, and few pieces for what is published."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.harness.patching.tiles import Merged, Piece, attend, pieces


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


@pytest.mark.parametrize("width", [4, 16])
@pytest.mark.parametrize("window", [1, 2, 7, 49, 50])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_pieces_are_merged_into_one_softmax(window, softcap, width):
    """Causal pairs that are cut at a distance into two bands are one attention in float64."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 50, size, dtype=torch.float64) for size in (16, 16, width))
    here = torch.arange(50)
    far = (here + 1 - window).clamp(min=0)
    merged = Merged.empty(q, width)
    cut = pieces(far, here + 1) + pieces(torch.zeros_like(far), far)
    attend(merged, q, k, v, cut, 0.3, softcap)
    scores = (q @ k.mT) * 0.3
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    unseen = torch.ones(50, 50, dtype=torch.bool).triu(1)
    wanted = scores.masked_fill(unseen, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(merged.values, wanted, rtol=0, atol=1e-12)
