"""One softmax out of pieces: equal to the dense one, by every way of computing a piece."""

from __future__ import annotations

import pytest
import torch

from harness.patching import tiles
from harness.patching.tiles import NOTHING, Merged, Piece, Rows, attend, attend_tiles, pieces
from scaling.types import Frequencies, by_distance

ROWS, WIDTH = 50, 16


def dense(q, k, v, met, scale, softcap=None):  # type: ignore[no-untyped-def]
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


@pytest.mark.parametrize("window", [1, 2, 7, 49, 50])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_pieces_are_merged_into_one_softmax(window: int, softcap: float | None) -> None:
    """Wherever the pairs are cut, the sum is that of the dense softmax, soft-capped or not."""
    q, k, v = tensors(torch.float64)
    met, cut = split(window)
    merged = Merged.empty(q, WIDTH)
    attend(merged, q, k, v, cut, 0.3, softcap)
    torch.testing.assert_close(merged.values, dense(q, k, v, met, 0.3, softcap), rtol=0, atol=1e-12)


def test_tiles_are_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no fused kernel will do, tiles smaller than the piece give the same numbers."""
    monkeypatch.setattr(tiles, "SCORES", 8)
    q, k, v = tensors(torch.float64)
    met, cut = split(20)
    merged = Merged.empty(q, WIDTH)
    attend(merged, q, k, v, cut, 0.3, 1e9)  # a cap so high that it does nothing
    torch.testing.assert_close(merged.values, dense(q, k, v, met, 0.3), rtol=0, atol=1e-7)


@pytest.mark.parametrize("width", [4, 24])
def test_values_may_have_another_width(width: int) -> None:
    """As in latent attention, where keys are wider than values."""
    q, k, v = tensors(torch.float64, width)
    met, cut = split(20)
    merged = Merged.empty(q, width)
    attend(merged, q, k, v, cut, 0.3, None)
    torch.testing.assert_close(merged.values, dense(q, k, v, met, 0.3), rtol=0, atol=1e-12)


def test_a_row_without_a_pair_is_zero() -> None:
    """Never NaN, which would poison the layers above."""
    q, k, v = tensors(torch.float32)
    merged = Merged.empty(q, WIDTH)
    attend(merged, q, k, v, [Piece((10, 20), (0, 5), "all")], 0.3, None)
    assert bool((merged.values[:, :, :10] == 0).all())
    assert bool(torch.isfinite(merged.values).all())
    assert bool((merged.lse[:, :, 20:] == NOTHING).all())


def test_bfloat16_is_merged_in_float32() -> None:
    """The sums of many pieces lose no more than the inputs' own rounding."""
    q, k, v = tensors(torch.bfloat16)
    met, cut = split(2)
    merged = Merged.empty(q, WIDTH)
    attend(merged, q, k, v, cut, 0.3, None)
    assert merged.values.dtype == torch.float32
    wanted = dense(q.float(), k.float(), v.float(), met, 0.3)
    torch.testing.assert_close(merged.values, wanted, rtol=0, atol=2e-2)


def test_a_key_that_several_queries_share_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view over grouped heads reaches the kernel as a view: copies would grow with the group."""
    seen, name = [], "_scaled_dot_product_flash_attention_for_cpu"
    kernel = getattr(torch.ops.aten, name)
    monkeypatch.setattr(
        torch.ops.aten, name, lambda *parts, **how: (seen.append(parts), kernel(*parts, **how))[1]
    )
    q, k, v = tensors(torch.float32)
    shared = [part[:, :1].expand(-1, 3, -1, -1) for part in (k, v)]
    rows = Rows.of(0, 32)
    near = by_distance(32, Frequencies(torch.ones(1)), 0)
    attend_tiles(Merged.empty(q, WIDTH), q, *shared, list(rows.covered(near, None)), 0.3)
    assert [part.stride(1) for part in seen[0][1:3]] == [0, 0]
