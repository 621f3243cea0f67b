"""What moving positions costs: tables made once, memory linear in the length, nothing per pair."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from harness.patching.config import rope_of
from harness.patching.layout import Layout
from harness.patching.patch import patched
from scaling import dual_chunk, dynamic_ntk, rerope
from scaling.types import Bands, Frequencies, Rope, by_distance
from tests.banded import METHODS, bands_of, model_of

ROPE = Rope(16, 10_000.0, 256)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the rows of every table that is made."""
    made, own = [], Layout.tables

    def tables(self: Layout, positions: torch.Tensor, *given: Any) -> Any:
        made.append(len(positions))
        return own(self, positions, *given)

    monkeypatch.setattr(Layout, "tables", tables)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("method", "bands"), [(rerope, 2), (dual_chunk, 3)])
@torch.inference_mode()
def test_layers_and_chunks_share_their_tables(
    monkeypatch: pytest.MonkeyPatch, method: Any, bands: int
) -> None:
    """Queries and keys of a band have one table each, whatever the layers, chunks and lengths."""
    model = model_of("llama")
    found = method.bands(rope_of(model.config), 600)
    assert len(found.bands) == bands
    with patched(model, found):
        made = counted(monkeypatch)
        for length in (600, 600, 400):
            model.model(input_ids=torch.arange(length)[None] % 256, use_cache=False)
    assert len(made) == 2 * bands


def test_the_keys_of_a_base_each_are_one_row() -> None:
    """mode=per_query: its bands are views of one row of positions, not length x length numbers."""
    length = 512
    found = dynamic_ntk.bands(ROPE, length, mode="per_query", block=1)
    assert isinstance(found, Bands)
    rows = {band.key.untyped_storage().data_ptr(): band.key for band in found.bands}
    assert sum(row.untyped_storage().nbytes() for row in rows.values()) <= 8 * length


def test_a_base_for_each_query_comes_in_blocks() -> None:
    """Left to itself per_query has a base every 32 tokens: one each is 28 times as slow as none."""
    found = dynamic_ntk.bands(ROPE, 8 * 256, mode="per_query")
    assert isinstance(found, Bands)
    assert len(found.bands) == 1 + 7 * 256 // 32


@pytest.mark.slow
@given(
    keys=st.lists(st.integers(-50, 50), min_size=1, max_size=70),
    spans=st.integers(0, 2**30),
    ordered=st.booleans(),
)
def test_reach_is_the_largest_relative_position(keys: list[int], spans: int, ordered: bool) -> None:
    """As a loop over every pair finds it, wherever keys are rotated to."""
    maker = torch.Generator().manual_seed(spans)
    length = len(keys)
    key = torch.tensor(sorted(keys) if ordered else keys, dtype=torch.float64)
    query = torch.randint(-50, 50, (length,), generator=maker)
    near, far = sorted(torch.randint(1, length + 2, (2,), generator=maker).tolist())
    bands = (
        by_distance(length, Frequencies(ROPE.inv_freq()), 0, near, query=query, key=key),
        by_distance(length, Frequencies(ROPE.inv_freq()), near, far, query=query, key=key),
    )
    wanted = max(
        float(band.query[m] - band.key[n])
        for band in bands
        for m in range(length)
        for n in range(int(band.first[m]), int(band.end[m]))
    )
    assert Bands(length, bands).reach == wanted


class Held(TorchDispatchMode):
    """Note the most bytes that the tensors made inside hold at once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.total = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor):
                store = one.untyped_storage()
                self.alive[store._cdata] = StorageWeakRef(store), store.nbytes()
                self.total += store.nbytes()
        if self.total > self.most:  # at most so much: what is gone, or counted twice, is in it
            self.alive = {key: one for key, one in self.alive.items() if not one[0].expired()}
            self.total = sum(size for _, size in self.alive.values())
            self.most = max(self.most, self.total)
        return made


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name != "per_query exact"])
@torch.inference_mode()
def test_memory_is_linear_in_the_length(method: str) -> None:
    """Twice the tokens hold about twice the bytes, bands and tables included."""
    model, sizes = model_of("llama"), []
    for length in (512, 1024):
        with Held() as held:
            bands = bands_of("llama", method, length)
            with patched(model, bands):
                model.model(input_ids=torch.arange(length)[None] % 256, use_cache=False)
        sizes.append(held.most)
    assert sizes[1] <= 2.2 * sizes[0]
