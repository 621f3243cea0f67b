"""What ``ropewalk check`` says of a method that moves positions."""

from __future__ import annotations

from functools import cache, partial
from itertools import count
from typing import Any

import pytest
import torch

from harness.methods.check_positions import GEOMETRIES, check_bands, moves_positions
from scaling import dual_chunk, dynamic_ntk, lm_infinite, log_n, none, rerope, self_extend, yarn
from scaling._bands import Bands, by_distance
from scaling._types import Frequencies, Rope


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fewer geometries be tried: what is said of them is the same."""
    monkeypatch.setattr("harness.methods.check_positions.GEOMETRIES", GEOMETRIES[:10])


@cache
def told(method: Any) -> dict[str, tuple[str, str]]:
    return {f.about: (f.verdict, f.text) for f in check_bands(method)}


@pytest.mark.parametrize(
    ("method", "moves"),
    [
        (rerope.bands, True),
        (yarn.frequencies, False),
        (log_n.bands, True),
        (partial(self_extend.bands, window=1024), True),
    ],
)
def test_it_is_known_by_what_it_returns(method: Any, moves: bool) -> None:
    """A method that returns nothing but frequencies is checked as such."""
    assert moves_positions(method) is moves


@pytest.mark.slow
def test_it_says_where_positions_go() -> None:
    """How far, whether in order, how many pairs are met, and what the trained window sees."""
    moved = told(rerope.bands)
    assert moved["reach"][1].endswith("0.25 at 16 windows")
    assert moved["inside the window"][0] == "note"
    assert told(self_extend.bands)["inside the window"][0] == "passed"
    assert told(dual_chunk.bands)["order"][0] == "note"
    assert told(lm_infinite.bands)["attended to"][1].endswith("12% at 16 windows")
    assert "attended to" not in moved
    assert told(log_n.bands)["queries"] == ("note", "scaled by their position")


@pytest.mark.slow
def test_other_bits_the_second_time_are_found() -> None:
    """A method with a state is no method."""
    counter = count()

    def drifting(rope: Rope, length: int) -> Bands:
        key = torch.arange(length) / (2 + next(counter))
        plain = Frequencies(rope.inv_freq())
        return Bands(length, (by_distance(length, plain, 0, query=key, key=key),))

    assert told(drifting)["repeats"][0] == "failed"


def keyless(rope: Rope, length: int) -> Bands:
    return Bands(length, (by_distance(length, none.frequencies(rope, length), 1),))


def broken(rope: Rope, length: int) -> Bands:
    raise ZeroDivisionError(f"{rope} {length}")


def stateful(rope: Rope, length: int) -> Any:
    return dynamic_ntk.bands(rope, length, mode="transformers")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (keyless, "query 0 meets no key"),
        (broken, "ZeroDivisionError"),
        (stateful, "beyond the window it runs on a model only"),
    ],
)
def test_what_is_no_attention_is_told(method: Any, words: str) -> None:
    """With the sentence that says why."""
    verdict, text = told(method)["runs"]
    assert verdict != "passed"
    assert words in text
