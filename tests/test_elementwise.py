"""Elementwise functions have the bits of one thread, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

from harness.engine.elementwise import as_one_thread

CPU = torch.device("cpu")
FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    functional.silu,
    lambda x: functional.gelu(x, approximate="tanh"),
    functional.gelu,
    functional.softplus,
    torch.sigmoid,
    torch.tanh,
    lambda x: x.exp(),
]


@pytest.fixture(autouse=True)
def _one_thread_after() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("threads", [2, 3, 5, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_those_of_one_thread(threads: int, dtype: torch.dtype) -> None:
    """Few elements and many, an odd number of them, in one piece or rows apart: all are equal."""
    torch.manual_seed(0)
    wide = torch.randn(1, 352, 2 * 707, dtype=dtype)
    given = [wide, *wide.chunk(2, -1), wide[:, :33], wide[0, :1, :33], wide.flatten()[:99_999]]
    for function in FUNCTIONS:
        for x in given:
            torch.set_num_threads(1)
            wanted = function(x)
            torch.set_num_threads(threads)
            with as_one_thread(CPU):
                found = function(x)
            assert torch.equal(found, wanted)
            assert found.shape == wanted.shape


def test_what_does_not_round_is_left_alone() -> None:
    """Other functions, results written in place, and one thread go their usual way."""
    torch.set_num_threads(3)
    x, out = torch.randn(300, 300), torch.empty(300, 300)
    with as_one_thread(CPU):
        assert torch.equal(x.relu(), x.clamp(min=0))
        assert torch.exp(x, out=out) is out
    torch.set_num_threads(1)
    with as_one_thread(CPU) as mode:
        assert mode is None
