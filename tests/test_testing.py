"""What methods and encodings are held to: each check fails for one that breaks it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.harness.plugins import load
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


class TestCommands:
    @pytest.mark.slow
    def test_the_file_to_begin_with_passes_and_runs(
        self, tiny, docs, tmp_path, monkeypatch, ropewalk
    ):
        """From nothing to a sweep in three commands; at strength 1 its numbers are those of ntk."""
        monkeypatch.chdir(tmp_path)
        assert ropewalk("new", "method", "mine").status == 0
        done = ropewalk("check", "./mine.py:strength=0.9", "--model", tiny, "--length", "4x")
        told = "window 64, lengths 256"
        assert (done.status, told in done.out) == (0, True), done.out
        words = ["--model", tiny, "--docs", docs, "--scaling", "ntk", "./mine.py", "--length", "4x"]
        words += ["--task", "perplexity:tail=16", "--device", "cpu", "--out", "run"]
        assert ropewalk("run", *words)[0] == 0
        cells = json.loads(Path("run/run.json").read_text())["cells"]
        assert {cell["scaling"] for cell in cells} == {"ntk", "mine"}
        assert len({cell["key"] for cell in cells}) == 1

    @pytest.mark.slow
    def test_the_file_that_moves_positions_is_rerope(self, tmp_path, monkeypatch, ropewalk):
        """It passes, and its bands are those of rerope at the same window, bit for bit."""
        monkeypatch.chdir(tmp_path)
        assert ropewalk("new", "bands", "mine")[0] == 0
        done = ropewalk("check", "./mine.py")
        assert (done.status, "not the plain embedding" in done.out) == (0, True)
        mine, rope = load("method", "./mine.py"), Rope(32, 10_000.0, 100)
        found = mine.module.bands(rope, 300, window=25)
        assert found.fingerprint == rerope.bands(rope, 300, window=25).fingerprint
