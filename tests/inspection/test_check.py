"""What a method is held to, what is said of one that fails, and the file to begin one with."""

import json
import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.inspection.check import BAND_ROPES, BAND_WINDOWS, OWN, check_method
from harness.methods import Finding
from harness.plugins import load
from scaling import abf, dual_chunk, dynamic_ntk, lm_infinite, log_n, none, pi, rerope, self_extend
from scaling.types import Bands, Frequencies, Rope, by_distance

ONE = [Rope(rotary_dim=4, base=100.0, trained_length=32)]
AT = "at rotary_dim 4, base 100, window 32, length"
KEPT = ["runs", "result", "numbers", "pairs", "repeats", "pure", "order", "inside the window"]


def check(
    method: Callable[..., Any], ropes: Sequence[Rope] = ONE, windows: Sequence[float] = (1.0, 2.0)
) -> tuple[Finding, ...]:
    return check_method(method, [*product(ropes, windows)])


def findings(method: Callable[..., Any], *windows: float) -> dict[str, Finding]:
    """Return the findings on a rope of two channel pairs, by what they are about."""
    return {one.about: one for one in check(method, ONE, windows or (1.0, 2.0, 8.0))}


def failed(method: Callable[..., Any], *windows: float) -> dict[str, str]:
    return {
        found.about: found.text
        for found in findings(method, *windows).values()
        if found.verdict == "failed"
    }


def test_a_good_method_passes_every_line():
    found = findings(pi.frequencies)
    assert [line.about for line in found.values() if line.verdict == "passed"] == KEPT
    told_of = "equal to none, bit for bit, in the window of 32 tokens"
    assert found["inside the window"].text == told_of
    assert found["fastest pair"].text == (
        "moves by up to 87.5 %, rotary_dim 4, base 100, window 32, length 256"
    )
    assert found["slowest pair"].text == "slowed by 2 at 2 windows, 8 at 8 windows"
    assert found["unseen angles"].text == "met by no pair at any length"
    assert found["attention factor"].text == "1"


def test_another_reading_of_the_window_is_a_note():
    """ABF at base 10000 makes 1/10 into 1/100 inside the window too: told, and no failure."""
    found = findings(lambda rope, length: abf.frequencies(rope, length, base=1e4))[
        "inside the window"
    ]
    assert found == Finding(
        "inside the window",
        "note",
        "not equal to none: frequencies move by up to 90 %, attention factor 1; the model reads "
        "its own window differently from training",
    )


def test_rounding_is_not_another_reading_of_the_window():
    """Frequencies that are one step of float32 off, as other orders of operations give, pass."""

    def off(rope: Rope, length: int, eps: float = torch.finfo(torch.float32).eps) -> Frequencies:
        return Frequencies(pi.frequencies(rope, length).inv_freq * (1 + eps), 1 + eps / 2)

    found = findings(off)["inside the window"]
    assert found.verdict == "passed"
    assert found.text.startswith("equal to none but for the rounding of float32 (1.")
    assert findings(partial(off, eps=1e-4))["inside the window"].verdict == "note"


@pytest.mark.parametrize("method", ["yarn", "rerope"])
def test_a_method_is_checked_at_the_geometry_of_a_model(method, tiny, ropewalk):
    status, out, _ = ropewalk("check", method, "--model", tiny, "--length", "4x")
    assert status == 0, out
    if method == "yarn":
        told_of = "rotary_dim 16, base 10000, window 64, length in windows 0.5 to 4"
        assert f"at all 4 geometries tried: {told_of}" in out
        assert "bit for bit, in the window of 64 tokens" in out
    else:
        assert "at all 4 geometries tried: rotary_dim 16" in out
        assert "0.25 at 4 windows" in out
    status, _, err = ropewalk("check", method, "--length", "4x")
    assert (status, "--length is for a model; give --model too" in err) == (2, True)


@pytest.mark.parametrize(("returned", "about", "text"), [
    (lambda f: f, "result", "it returned Tensor, not Frequencies"),
    (lambda f: Frequencies(f[1:]), "pairs", "1 frequencies for 2 channel pairs"),
    (lambda f: Frequencies(f.double()), "numbers",
     "inv_freq must be one row of float32, got torch.float64 (2,)"),
    (lambda f: Frequencies(-f / f), "numbers",
     "inv_freq must be finite and not negative, got -1 for channel pair 0"),
    (lambda f: Frequencies(f, 0.0), "numbers", "attention_factor must be positive, got 0.0"),
])  # fmt: skip
def test_a_result_that_is_none_fails(returned, about, text):
    found = failed(lambda rope, _: returned(rope.inv_freq()))
    assert found == {about: f"not in 3 of 3 calls: {AT} 32: {text}"}


def test_an_error_fails_with_its_line():

    def short_sighted(rope: Rope, length: int) -> Frequencies:
        return Frequencies(rope.inv_freq() / (1 if length < 100 else 0 // 0))

    found = failed(short_sighted, 1.0, 8.0)
    assert list(found) == ["runs"]
    assert found["runs"].startswith(
        "an error in 2 of 2 calls: at rotary_dim 4, base 100, window 32, length 512 failed: "
        f"ZeroDivisionError: integer division or modulo by zero at {__file__}:"
    )


def test_a_refusal_is_a_note_and_refusing_all_a_failure():

    def refuse(rope: Rope, length: int) -> Frequencies:
        if rope.base > 50:
            message = "the base is too large"
            raise ValueError(message)
        return none.frequencies(rope, length)

    small = Rope(4, 10.0, 32)
    assert failed(refuse) == {
        "runs": f"it raises ValueError at every geometry: {AT} 32: the base is too large"
    }
    found = check(refuse, [*ONE, small], [1.0, 2.0])
    text = f"ValueError in 2 of 4 calls: {AT} 32: the base is too large"
    assert found[0] == Finding("runs", "note", text)
    assert all(line.verdict != "failed" for line in found)


def test_another_answer_the_second_time_fails():
    longest, buffer = [1], torch.zeros(2)

    def chance(rope: Rope, _: int) -> Frequencies:
        return Frequencies(rope.inv_freq() * random.random())

    def memory(rope: Rope, length: int) -> Frequencies:
        longest.append(max(length, longest[-1]))
        return pi.frequencies(rope, longest[-1])

    def shared(rope: Rope, length: int) -> Frequencies:
        return Frequencies(buffer.copy_(rope.inv_freq() / length))

    for method in (chance, memory, shared):
        text = f"the same call gives other numbers the second time, first {AT} 32"
        assert failed(method) == {"repeats": text}


def test_a_changed_rope_fails():
    """What a checkpoint ships is not a method's to write to; the given rope stays whole."""

    def greedy(rope: Rope, length: int) -> Frequencies:
        rope.shipped["seen"] = length
        return none.frequencies(rope, length)

    assert failed(greedy) == {"pure": f"the rope is changed, first {AT} 32"}
    assert ONE[0].shipped == {}


def test_rising_frequencies_are_a_note():
    found = findings(lambda rope, _: Frequencies(rope.inv_freq().flip(0)))["order"]
    text = f"a pair is faster than the one before it, first {AT} 32"
    assert found == Finding("order", "note", text)


@cache
def band_findings(method: Any) -> dict[str, tuple[str, str]]:
    geometries = [*product(BAND_ROPES, BAND_WINDOWS)][:10]
    return {f.about: (f.verdict, f.text) for f in check_method(method, geometries, OWN[:7])}


@pytest.mark.slow
def test_it_says_where_positions_go():
    moved = band_findings(rerope.bands)
    assert moved["reach"][1].endswith("0.25 at 16 windows")
    assert moved["inside the window"][0] == "note"
    assert band_findings(self_extend.bands)["inside the window"][0] == "passed"
    assert band_findings(dual_chunk.bands)["order"][0] == "note"
    assert band_findings(lm_infinite.bands)["attended to"][1].endswith("12 % at 16 windows")
    assert "attended to" not in moved
    assert band_findings(log_n.bands)["queries"] == ("note", "scaled by their position")


def second(rope: Rope, length: int, *, near: int, until: int = 2**62) -> Any:
    """Halve the distance of keys from a fixed distance on, in windows of less than ``until``."""
    plain, key = Frequencies(rope.inv_freq()), torch.arange(length) // 2
    far = by_distance(length, plain, near, key=key)
    if rope.trained_length >= until:
        return plain
    return Bands(length, (by_distance(length, plain, 0, near), far)).plainest()


@pytest.mark.parametrize(
    ("method", "least", "same"),
    [
        (partial(second, near=6000), "6,002", "windows from 256 to 6,001"),
        (partial(second, near=2500, until=4000), "2,502", "windows from 256 to 2,501"),
    ],
)
def test_a_band_that_begins_inside_a_larger_window_is_found(method, least, same):
    """Its boundary is tried as a window: the small ones that are tried do not reach it."""
    verdict, text = band_findings(method)["inside the window"]
    assert (verdict, text.partition(" tokens")[0]) == (
        "note", f"not equal to none in windows of {least}",
    )  # fmt: skip
    assert same in text


@pytest.mark.slow
def test_other_bits_the_second_time_are_found():
    counter = count()

    def drifting(rope: Rope, length: int) -> Bands:
        key = torch.arange(length) / (2 + next(counter))
        plain = Frequencies(rope.inv_freq())
        return Bands(length, (by_distance(length, plain, 0, query=key, key=key),))

    assert band_findings(drifting)["repeats"][0] == "failed"


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
def test_what_is_no_attention_is_told(method, words):
    """With the sentence that says why."""
    verdict, text = band_findings(method)["runs"]
    assert verdict != "passed"
    assert words in text


def test_bands_that_begin_at_the_requested_length_are_known(tiny, tmp_path, ropewalk):
    """A method that moves positions from 3 windows on is checked as such at 3 windows."""
    file = tmp_path / "late.py"
    file.write_text(
        "from scaling import none, rerope\n\n"
        "def bands(rope, length):\n"
        "    late = length >= 3 * rope.trained_length\n"
        "    return (rerope.bands if late else none.frequencies)(rope, length)\n"
    )
    status, out, _ = ropewalk("check", file, "--model", tiny, "--length", "3x")
    assert status == 0, out
    assert "relative positions, in windows" in out


class TestCommands:
    """``ropewalk new`` and ``ropewalk check``."""

    @pytest.mark.slow
    def test_the_file_to_begin_with_passes_and_runs(
        self, tiny, docs, tmp_path, monkeypatch, ropewalk
    ):
        """From nothing to a sweep in three commands; at strength 1 its numbers are those of ntk."""
        monkeypatch.chdir(tmp_path)
        assert ropewalk("new", "method", "mine") == (
            0,
            "Wrote mine.py. Does it keep the contract, what does it do, how far does it carry:\n"
            "  ropewalk check ./mine.py\n"
            "  ropewalk inspect --scaling none ./mine.py --length 4x --out figures\n"
            "  ropewalk run --scaling none ./mine.py\n",
            "",
        )
        status, out, _ = ropewalk("check", "./mine.py:strength=0.9")
        assert (status, out.count("✗")) == (0, 0)
        assert out.endswith("mine:strength=0.9: passed\n")
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
        status, out, _ = ropewalk("check", "./mine.py")
        assert (status, out.count("✗")) == (0, 0)
        mine, rope = load("method", "./mine.py"), Rope(32, 10_000.0, 100)
        found = mine.module.bands(rope, 300, window=25)
        assert found.fingerprint == rerope.bands(rope, 300, window=25).fingerprint

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("2fast",), "'2fast' is not a name for a method"),
            (("lambda",), "'lambda' is not a name for a method"),
            (("yarn",), "a method of Ropewalk is called 'yarn'"),
            (("here",), "here.py exists already"),
            (("mine", "--out", "here.py"), "here.py/mine.py cannot be written: File exists."),
        ],
    )
    def test_a_file_is_never_written_over(self, words, told, tmp_path, monkeypatch, rejected):
        monkeypatch.chdir(tmp_path)
        Path("here.py").write_text("mine")
        assert told in rejected("new", "method", *words)
        assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]

    def test_a_failed_check_is_exit_1(self, tmp_path, ropewalk):
        file = tmp_path / "bad.py"
        file.write_text("def frequencies(rope, length):\n    return rope.inv_freq()\n")
        status, out, err = ropewalk("check", file)
        assert (status, err) == (1, "")
        assert "✗ result  not in 384 of 384 calls: at rotary_dim 16, base 1000, window" in out
        assert out.endswith("bad: 1 failed\n")
