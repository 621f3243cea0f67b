"""What methods and encodings are held to: each check fails for one that breaks it."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.scaling import abf, dual_chunk, pi, rerope
from ropewalk.scaling.types import Bands, Frequencies, Rope, by_distance

ROPE = Rope(rotary_dim=4, base=100.0, trained_length=32)


def wrong(method: Any, *, plain_inside: bool = False) -> str:
    with pytest.raises(AssertionError) as found:
        rw.testing.check_method(method, ROPE, [32, 64], plain_inside=plain_inside)
    return str(found.value)


def test_good_methods_pass():
    for method in (pi.frequencies, dual_chunk.bands):
        rw.testing.check_method(method, ROPE, [16, 32, 256])
    rw.testing.check_method(pi.frequencies, ROPE, [16, 32, 256], plain_inside=True)
    for method in (abf.frequencies, rerope.bands):
        assert "inside the trained window, it is not the plain" in wrong(method, plain_inside=True)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (lambda f: f, "it returns Tensor, not Frequencies"),
        (lambda f: Frequencies(f[1:]), "1 frequencies for 2 channel pairs"),
        (lambda f: Frequencies(f.double()), "one row of a float32"),
        (lambda f: Frequencies(f / 0), "must be finite"),
        (lambda f: Frequencies(f, 0.0), "attention_factor must be positive"),
        (lambda f: Bands(16, (by_distance(16, Frequencies(f), 0),)), "bands are for 16 tokens"),
    ],
)
def test_a_result_that_is_no_rotation_fails(returned, text):
    found = wrong(lambda rope, _: returned(rope.inv_freq()))
    assert found.startswith("at 32 tokens")
    assert text in found


def test_other_numbers_the_second_time_fail():
    longest, buffer = [1], torch.zeros(2)

    def chance(rope: Rope, _: int) -> Frequencies:
        return Frequencies(rope.inv_freq() * random.random())

    def memory(rope: Rope, length: int) -> Frequencies:
        longest.append(max(length, longest[-1]))
        return pi.frequencies(rope, longest[-1])

    def shared(rope: Rope, length: int) -> Frequencies:
        return Frequencies(buffer.copy_(rope.inv_freq() / length))

    for method in (chance, memory, shared):
        assert "a second call gives other numbers" in wrong(method)


def test_an_option_that_is_not_validated_fails():
    def kept(rope: Rope, _: int, *, share: float = 0.5) -> Frequencies:
        slow = torch.arange(2) >= 2 * share
        return Frequencies(torch.where(slow, rope.inv_freq() / 2, rope.inv_freq()))

    def first(rope: Rope, _: int, *, count: int | None = None) -> Frequencies:
        return Frequencies(rope.inv_freq() / (2 + (count or 0)))

    assert wrong(kept) == "share=nan does not raise a ValueError"
    assert wrong(first) == "count=-1 does not raise a ValueError"


def test_a_file_of_ones_own_is_checked(tmp_path, ropewalk):
    """Bands that differ inside the window are noted; what breaks the contract fails."""
    mine = shutil.copy(rerope.__file__, tmp_path / "mine.py")
    done = ropewalk("check", mine, "--length", "4x")
    assert (done.status, "window 256, lengths 1024" in done.out) == (0, True)
    assert "not the plain embedding" in done.out
    Path(mine).write_text("def frequencies(rope, length):\n    return length\n")
    done = ropewalk("check", mine)
    assert (done.status, "it returns int, not Frequencies" in done.out) == (1, True)
    Path(mine).write_text("def frequencies(rope, length):\n    raise KeyError(length)\n")
    assert "its code failed: KeyError" in ropewalk("check", mine).out
