"""Cutting bands into pieces: every pair once, and few pieces for what is published."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.patching.tiles import Piece, pieces
from scaling import dual_chunk, lm_infinite, rerope, self_extend, string
from scaling.types import Bands, Rope

ROPE = Rope(16, 10_000.0, 256)


def covered(found: list[Piece], rows: int, keys: int) -> torch.Tensor:
    """Return how often every pair is in the pieces, by a loop over each of them."""
    counts = torch.zeros(rows, keys, dtype=torch.int64)
    for piece in found:
        for i, row in enumerate(range(*piece.rows)):
            for j, key in enumerate(range(*piece.keys)):
                counts[row, key] += {"all": True, "lower": j <= i, "upper": j >= i}[piece.shape]
    return counts


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=24))
def test_pieces_are_every_pair_once(bounds: list[tuple[int, int]]) -> None:
    """Whatever the bounds of the rows, jumping and empty ones included."""
    first = torch.tensor([min(pair) for pair in bounds])
    end = torch.tensor([max(pair) for pair in bounds])
    keys = torch.arange(12)
    wanted = (keys >= first[:, None]) & (keys < end[:, None])
    assert torch.equal(covered(pieces(first, end), len(bounds), 12), wanted.long())


@pytest.mark.slow
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(0, 5), st.integers(0, 1), st.integers(0, 1)
)
def test_moving_windows_are_every_pair_once(
    rows: int, width: int, start: int, left: int, right: int
) -> None:
    """Where both bounds stand still or move on by one: squares fit their rows exactly."""
    here = torch.arange(rows)
    first, end = start + here * left, start + width + here * right
    end = torch.maximum(first, end)
    keys = torch.arange(int(end.max()))
    wanted = (keys >= first[:, None]) & (keys < end[:, None])
    found = pieces(first, end)
    assert torch.equal(covered(found, rows, len(keys)), wanted.long())
    for piece in found:
        square = piece.rows[1] - piece.rows[0] == piece.keys[1] - piece.keys[0]
        assert piece.shape == "all" or square


@pytest.mark.parametrize("method", [rerope, self_extend, dual_chunk, string, lm_infinite])
def test_published_methods_are_few_pieces(method) -> None:  # type: ignore[no-untyped-def]
    """The number of kernel calls grows with length / window, not with length."""
    found = method.bands(ROPE, 8 * 256)
    assert isinstance(found, Bands)
    assert sum(len(pieces(band.first, band.end)) for band in found.bands) <= 110
