"""Cutting bands into pieces: every pair once, and few pieces for what is published."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.harness.patching.tiles import Merged, Piece, attend, in_squares, in_windows, pieces
from tests.cuda_operators import Operators


def covered(found: list[Piece], rows: int, keys: int) -> torch.Tensor:
    """Return how often every pair is in the pieces, by FlashAttention-2's rule, in a loop."""
    counts = torch.zeros(rows, keys, dtype=torch.int64)
    for piece in found:
        rows_of, keys_of = (range(one.start, one.stop) for one in (piece.rows, piece.keys))
        behind = len(keys_of) - len(rows_of)
        for i, row in enumerate(rows_of):
            for j, key in enumerate(keys_of):
                seen = piece.left < 0 or j >= i + behind - piece.left
                counts[row, key] += seen and (piece.right < 0 or j <= i + behind + piece.right)
    return counts


# How both bounds of the keys change from row to row: by whatever, but often by 0 or 1, in runs.
BOUNDS = st.lists(
    st.tuples(st.integers(-2, 9), st.integers(0, 9), st.integers(0, 1), st.integers(0, 1),
              st.integers(1, 6)), min_size=1, max_size=6,
)  # fmt: skip


@given(BOUNDS, st.booleans())
def test_pieces_are_every_pair_once(runs, windows):
    first, end = (
        torch.cat([start + moves * torch.arange(rows) for start, moves, rows in bounds])
        for bounds in (
            [(low, by, rows) for low, _, by, _, rows in runs],
            [(low + width, by, rows) for low, width, _, by, rows in runs],
        )
    )
    first = first.clamp(min=0)
    end = torch.maximum(first, end)
    keys = torch.arange(32)
    wanted = (keys >= first[:, None]) & (keys < end[:, None])
    found = pieces(first, end, windows=windows)
    assert torch.equal(covered(found, len(first), 32), wanted.long())
    if windows:
        assert len(found) <= 4 * len(runs) + 8


@pytest.mark.parametrize("window", [1, 2, 7, 49, 50])
@pytest.mark.parametrize("width", [4, 16, 20])
@pytest.mark.parametrize(
    ("windows", "heads", "softcap"), [(True, 1, None), (True, 3, None), (False, 3, None),
                                      (False, 3, 2.0)],
)  # fmt: skip
def test_pieces_are_merged_into_one_softmax(windows, heads, softcap, width, window, monkeypatch):
    """Causal pairs that are cut at a distance into two bands are one attention in float64.

    By the windows of a flash operator, with a key of its own for each head or one for all; or by
    squares and rectangles.
    """
    if windows:
        Operators.installed(monkeypatch, flash=True)
    torch.manual_seed(0)
    q = torch.randn(2, 3, 50, 20, dtype=torch.float64)
    k, v = (torch.randn(2, heads, 50, size, dtype=torch.float64) for size in (20, width))
    here = torch.arange(50)
    far = (here + 1 - window).clamp(min=0)
    merged = Merged.empty(q, width)
    bounds = ((far, here + 1), (torch.zeros_like(far), far))
    cut = [piece for first, end in bounds for piece in pieces(first, end, windows=windows)]
    attend(merged, q, k, v, cut, in_windows(0.3) if windows else in_squares(0.3, softcap))
    scores = q @ k.mT * 0.3
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    unseen = torch.ones(50, 50, dtype=torch.bool).triu(1)
    wanted = scores.masked_fill(unseen, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(merged.values, wanted, rtol=0, atol=1e-12)
