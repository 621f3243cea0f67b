"""What ``ropewalk check`` says of a method that moves positions."""

from __future__ import annotations

from functools import cache, partial
from itertools import count
from typing import Any

import pytest
import torch

from harness.methods.check_positions import GEOMETRIES, OWN, check_bands, moves_positions
from scaling import dual_chunk, dynamic_ntk, lm_infinite, log_n, none, rerope, self_extend, yarn
from scaling.types import Bands, Frequencies, Rope, by_distance, plainest


@cache
def told(method: Any) -> dict[str, tuple[str, str]]:
    return {f.about: (f.verdict, f.text) for f in check_bands(method, GEOMETRIES[:10], OWN[:7])}


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


def second(rope: Rope, length: int, *, near: int, until: int = 2**62) -> Any:
    """Halve the distance of keys from a fixed distance on, in windows of less than ``until``."""
    plain, key = Frequencies(rope.inv_freq()), torch.arange(length) // 2
    far = by_distance(length, plain, near, key=key)
    if rope.trained_length >= until:
        return plain
    return plainest(Bands(length, (by_distance(length, plain, 0, near), far)))


@pytest.mark.parametrize(
    ("method", "least", "same"),
    [
        (partial(second, near=6000), "6,002", "windows from 256 to 6,001"),
        (partial(second, near=2500, until=4000), "2,502", "windows from 256 to 2,501"),
    ],
)
def test_a_band_that_begins_inside_a_larger_window_is_found(
    method: Any, least: str, same: str
) -> None:
    """Its boundary is tried as a window: the small ones that are tried do not reach it."""
    verdict, text = told(method)["inside the window"]
    assert (verdict, text.partition(" tokens")[0]) == (
        "note", f"not equal to none in windows of {least}",
    )  # fmt: skip
    assert same in text


def test_the_windows_in_which_bands_do_nothing_are_named() -> None:
    """A ✓ says how many windows were tried, and from which to which."""
    verdict, text = told(self_extend.bands)["inside the window"]
    assert verdict == "passed"
    assert "bit for bit, in" in text
    assert "windows from 256 to 16,385 tokens, those tried" in text


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
