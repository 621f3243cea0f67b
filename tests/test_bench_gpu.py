"""The rows of a GPU, run on a CPU with tiny models: what PyTorch says of a GPU is given."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.engine import OutOfMemory, answers
from tasks.types import LoglikelihoodResponse
from tests import ROOT

TINY = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 4096,
}  # fmt: skip
LENGTHS = (128, 256, 512)
MOST = 3 * 2**20  # bytes that the GPU is said to have held


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The files of rows, with tiny shapes and an H100 that is a CPU."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    names = {"gpu": "gpu", "setting": "setting"}
    names |= {name: f"rows.gpu_{name}" for name in ("passes", "sharing", "bits")}
    found = {name: importlib.import_module(f"benchmarks.{of}") for name, of in names.items()}
    monkeypatch.setattr(found["gpu"], "SHAPES", {"1B": TINY, "8B": {**TINY, "head_dim": 32}})
    monkeypatch.setattr(found["gpu"], "LENGTHS", LENGTHS)
    monkeypatch.setattr(found["gpu"], "TRAINED", LENGTHS[0])
    told = {
        "get_device_name": "NVIDIA H100 80GB HBM3", "max_memory_allocated": MOST,
        "reset_peak_memory_stats": None, "memory_stats": {"num_ooms": 0},
    }  # fmt: skip
    for name, value in told.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    return SimpleNamespace(**found, asked=found["setting"].Setting("cpu", 1))


def test_passes_tell_speed_memory_and_share_of_the_peak(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models at three lengths: a pass's share is its counted operations over the peak."""
    monkeypatch.setattr(bench.passes, "METHODS", ("rerope", "dual_chunk"))
    monkeypatch.setattr(bench.passes, "LONGEST", 1024)
    found = {row.what: row for row in bench.passes.measure(bench.asked)}
    assert len(found) == 2 * (3 * 3 + 2 * 2 + 1)
    for name, inner, groups in (("1B", 64, 32), ("8B", 128, 64)):
        layer = 2 * 64 * inner + 2 * 64 * groups + 3 * 64 * 96
        weights = 2 * (2 * 4096 * 64 + 2 * layer + 5 * 64)
        for length in LENGTHS:
            share = found[
                f"{name} at {length}, share of the peak of 989 * 10^12 operations a second"
            ]
            seconds = length / found[f"{name} at {length}"].value
            scores = 4 * inner * length * (length + 1) / 2
            done = 2 * length * (2 * layer + 64 * 4096) + 2 * scores
            assert share.value == pytest.approx(done / seconds / 989e12)
            assert share.bar == (0.5 if length == LENGTHS[-1] else None)
            peak = found[f"{name} at {length}, peak memory over {bench.passes.WHOLE}"]
            assert peak.value == pytest.approx(
                MOST / (weights + 2 * length * (2 * 64 + 2 * groups))
            )
            assert (peak.bar, peak.above) == (1.0, False)
        for method in ("rerope", "dual_chunk"):
            for length in LENGTHS[1:]:
                what = f"{method}: time over that of plain frequencies, {name} at {length}"
                assert found[what].value > 0
        longest = found[f"{name}, longest power of two that fits"]
        assert (longest.value, longest.equal) == (1024, "longer was not tried")


def test_an_unknown_gpu_has_no_share_and_says_so(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The peak of a GPU is taken from a list, and never from one whose name is alike."""
    model = bench.setting.build(bench.asked, bench.setting.config("S", **TINY), torch.bfloat16)
    rows = {}
    for device in ("NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_, one=device: one)
        rows[device] = bench.passes._pass(bench.asked, model, 128, "1B at 128", True)
    pcie, unknown = rows.values()
    assert pcie[2].what.endswith("share of the peak of 756 * 10^12 operations a second")
    assert len(unknown) == 2
    assert "that of NVIDIA GeForce RTX 4090 is not known" in capsys.readouterr().out


def test_the_longest_length_ends_where_memory_or_patience_does(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doubling has an end: no memory, a minute a pass, or a million tokens."""
    monkeypatch.setattr(bench.passes, "tokens", lambda _, count: range(count))
    tried = []

    def answered(most: int) -> Any:
        def one(_: Any, asked: Any) -> Any:
            tried.append(asked[0].length)
            whole = asked[0].length <= most
            return [(0, LoglikelihoodResponse((1.0,), (1, 1)) if whole else OutOfMemory())]

        return one

    for most, seconds, value, told in (
        (512, 1.0, 512, "1024 ran out of memory"),
        (64, 1.0, 0, "128 ran out of memory"),
        (2**30, 100.0, 128, "longer was not tried: this took 100 s"),
        (2**30, 1.0, 2**20, "longer was not tried"),
    ):
        tried.clear()
        now = iter(range(10**6))
        clock = SimpleNamespace(
            size=lambda n: n, clock=lambda now=now, seconds=seconds: seconds * next(now)
        )
        monkeypatch.setattr(bench.passes, "answers", answered(most))
        row = bench.passes._longest(clock, None, "1B")
        assert (row.value, row.equal) == (value, told)
        assert len(tried) <= 14


def test_what_does_not_fit_has_no_row_and_says_so(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the time of a pass that failed is told, nor of one that went on with less."""
    monkeypatch.setattr(bench.passes, "METHODS", ())
    monkeypatch.setattr(bench.passes, "LONGEST", 64)
    monkeypatch.setattr(bench.gpu, "SHAPES", {"1B": TINY})
    failures = iter(range(10**6))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: {"num_ooms": next(failures)})
    (longest,) = bench.passes.measure(bench.asked)
    assert longest.value == 0
    told = capsys.readouterr().out
    assert all(f"gpu: 1B at {length} is not measured" in told for length in LENGTHS)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(bench.gpu, "build", full)
    assert bench.sharing.measure(bench.asked) == []
    assert "gpu: 1B in bfloat16 is not measured" in capsys.readouterr().out


def test_sharing_is_told_for_curves_and_pass_keys(bench: Any) -> None:
    """At every length, over the operations alone and together, as they are counted."""
    found = bench.sharing.measure(bench.asked)
    assert len(found) == 2 * 3 * 2 * 2
    assert all(row.value > 0 for row in found)
    assert "1B: prefix curve, 8 lengths to 512, each alone" in found[8].what
    assert found[8].equal.startswith("losses within")
    assert found[9].what.startswith("the same over the FLOP law")
    assert {row.bar for row in found} == {None, 1.0}


def test_the_law_of_sharing_is_that_of_the_operations(bench: Any) -> None:
    """It is the operations counted one by one: rows of layers, keys that each sees, the head."""
    shaped = bench.setting.config("S", **TINY)
    one, other = (tuple(range(start, start + 60)) for start in (0, 100))
    question = bench.gpu.Request
    asked = [question("q", 100, (*one[:40], *rest), 90) for rest in (one, other)]
    layer = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96)
    seen = [at + 1 for at in range(100)]

    def cost(places: list[int], heads: int) -> float:
        rows = sum(2 * (layer + 4 * 64 * keys) for keys in places)
        return rows + heads * 2 * 64 * 4096

    together = cost([*seen, *seen[40:]], 22)
    assert bench.sharing.law(shaped, asked) == pytest.approx(2 * cost(seen, 11) / together)


def test_unequal_bits_are_counted(bench: Any) -> None:
    """In float32 on a CPU there are none; a loss and a token that differ are told."""
    setting, model = bench.asked, bench.setting.config("S", **TINY)
    model = bench.setting.build(setting, model, torch.float32)
    rows = bench.bits._model(setting, "1B", model)
    ways = ("run again", "each question alone", "in other sizes")
    assert [row.what.rpartition(", ")[2] for row in rows] == [*ways, *ways]
    assert [row.value for row in rows] == [0.0] * 6
    assert rows[0].equal.startswith("0 of 568 losses unequal, at most 0.0e+00 nats apart; 0 of 576")
    first = [
        LoglikelihoodResponse((1.0, 2.0), (3, 4, 5)),
        LoglikelihoodResponse((4.0, 8.0), (6, 7, 8)),
    ]
    second = [
        LoglikelihoodResponse((1.0, 2.5), (3, 4, 5)),
        LoglikelihoodResponse((4.0, 8.0), (6, 9, 8)),
    ]
    row = bench.bits.unequal("x", first, second)
    assert row.value == 25.0
    assert row.equal == "1 of 4 losses unequal, at most 5.0e-01 nats apart; 1 of 6 likeliest tokens"


def test_rows_that_count_operations_are_of_a_cpu() -> None:
    """Of a GPU's kernels it is not counted what a causal row may see."""
    files = (ROOT / "scripts" / "benchmarks" / "rows").glob("*.py")
    counting = [text for file in files if "counted(" in (text := file.read_text(encoding="utf-8"))]
    assert len(counting) == 4
    assert all('DEVICE = "cpu"' in text for text in counting)


def test_bits_are_compared_of_both_models(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 and bfloat16 of the small one, and in bfloat16 of the large."""
    seen = []
    monkeypatch.setattr(
        bench.bits, "_model", lambda _, name, model: seen.append((name, model.dtype)) or []
    )
    assert bench.bits.measure(bench.asked) == []
    assert seen == [("1B", torch.float32), ("1B", torch.bfloat16), ("8B", torch.bfloat16)]
    assert bench.gpu.answers is answers
