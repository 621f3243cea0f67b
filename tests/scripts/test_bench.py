"""The benchmark's own counts, its tables, and the rows of a GPU with tiny models on a CPU."""

from __future__ import annotations

import csv
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.engine import OutOfMemory
from scripts import bench
from tasks.types import LoglikelihoodResponse as Response

TINY = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 4096,
}  # fmt: skip
LENGTHS = (128, 256, 512)
MOST = 3 * 2**20  # bytes that the GPU is said to have held
SETTING = bench.Setting("cpu", 1)


@pytest.mark.slow
def test_the_counts_of_the_benchmark_are_met(tmp_path: Any) -> None:
    """A curve forwards its longest length's tokens and operations; rows of other names stay."""
    words = ["--quick", "--repeats", "1", "--out", str(tmp_path), "--only"]
    for name in ("a3", "s", "a3"):
        bench.main([*words, name])
    (table,) = tmp_path.glob("*.csv")
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["met"]) for row in rows] == [
        ("a3", "True"),
        ("a3", ""),
        ("s", "True"),
    ]
    assert [float(row["value"]) for row in rows[:2]] == [1.0, 1.0]
    (page,) = (file.read_text(encoding="utf-8") for file in tmp_path.glob("*.md"))
    assert "| a3 | tokens forwarded over the longest length, 8 lengths | 1x |" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quick"], "--quick needs --out"),
        (["--only", "zz"], "invalid choice: 'zz'"),
        (["--only", "gpu"], "--only gpu needs --device cuda"),
        (["--only", "c", "--device", "cuda"], "--only c needs --device cpu"),
        (["--repeats", "x"], "invalid int value: 'x'"),
    ],
)
def test_a_wrong_word_ends_with_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main(words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_row_that_cannot_be_measured_ends_with_status_2(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the tool of row p is not installed, the row says so and no table is written."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as stopped:
        bench.main(["--quick", "--out", str(tmp_path / "out"), "--only", "p"])
    assert stopped.value.code == 2
    assert "p is not measured: it needs llama-perplexity" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_row_keeps_the_run_that_measured_it(tmp_path: Any) -> None:
    """Its day, machine and speed stay when other rows are measured on another day."""
    one, other = bench.row("a", "one", [1.0], "x", 2.0), bench.row("b", "other", [3.0], "x", None)
    then = bench.Run("2026-01-01", "A (R) machine, Linux", "float32 1 and 2")
    now = bench.Run("2026-01-02", "A (R) machine, newer", "float32 3 and 4")
    bench.write([one, other], then, tmp_path)
    page, numbers = bench.write([other], now, tmp_path)
    assert page.name == "a-machine.md"
    assert bench.read(numbers) == [(one, then), (other, now)]
    text = page.read_text(encoding="utf-8")
    assert "1. 2026-01-01, A (R) machine, Linux; float32 1 and 2\n2. 2026-01-02, A (R)" in text
    assert "| a | one | 1x |  | ≥ 2x | **no** |  | 1 |\n| b | other | 3x |  |  |  |  | 2 |" in text


def test_committed_tables_are_those_of_their_numbers() -> None:
    """Each page is what its CSV file gives, and no page was edited."""
    files = list(bench.RESULTS.glob("*.csv"))
    assert files
    for file in files:
        page = file.with_suffix(".md").read_text(encoding="utf-8")
        assert page == bench.markdown(bench.read(file))


@pytest.mark.slow
def test_threads_are_measured_by_stage_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage of both passes has a ratio, and the threads are set back."""
    monkeypatch.setattr(bench.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    before = torch.get_num_threads()
    rows = list(bench.threads(bench.Setting(quick=True, repeats=1)))
    assert torch.get_num_threads() == before
    stages = [row.what.rpartition(": ")[2] for row in rows]
    parts = [bench.PRODUCTS, bench.ATTENTION, bench.REST, bench.HEAD, bench.WHOLE]
    assert stages == 2 * parts
    assert all(row.value > 0 for row in rows)


@pytest.mark.parametrize("length", [64, 512, 700])
def test_tiled_attention_is_causal_attention(length: int) -> None:
    """It is softmax in float64, within rounding, where lengths end inside a tile too."""
    torch.manual_seed(length)
    query, key, value = (torch.randn(h, length, 64, dtype=torch.bfloat16) for h in (9, 3, 3))
    scores = query.double() @ key.double().repeat_interleave(3, 0).mT / 8
    unseen = torch.ones(length, length, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(unseen, float("-inf")).softmax(-1)
    exact = shares @ value.double().repeat_interleave(3, 0)
    for way in (bench.tiled, bench.fused):
        error = (way(query, key, value) - exact).norm(dim=-1) / exact.norm(dim=-1)
        assert error.max() <= bench.TILED_ERROR


@pytest.mark.slow
def test_a_profile_accounts_for_the_whole_pass() -> None:
    """Shares of a column sum to all, and every layer, attention and head has called its product."""
    page = bench.profile(bench.Setting(quick=True), repeats=1)
    lines = [line.split(" | ") for line in page.splitlines() if "% |" in line]
    assert {"| products of the layers", "| products of the head", "| attention"} <= {
        line[0] for line in lines
    }
    for column in (1, 2):
        shares = [float(line[column].rstrip(" |").rstrip("%")) for line in lines]
        assert all(share >= 0 for share in shares)
        assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a model of a tiny shape, on an H100 that is a CPU."""
    shapes = {"S": bench.SHAPES["S"], "1B": TINY, "8B": {**TINY, "head_dim": 32}}
    monkeypatch.setattr(bench, "SHAPES", shapes)
    monkeypatch.setattr(bench, "GPU_LENGTHS", LENGTHS)
    monkeypatch.setattr(bench, "GPU_WINDOW", LENGTHS[0])
    values = {
        "get_device_name": "NVIDIA H100 80GB HBM3", "max_memory_allocated": MOST,
        "reset_peak_memory_stats": None, "memory_stats": {"num_ooms": 0},
    }  # fmt: skip
    for name, value in values.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    return bench.build(SETTING, bench.config("1B"), torch.bfloat16)


def test_passes_have_speed_memory_and_share_of_the_peak(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At three lengths: a pass's share is its counted operations over the peak."""
    monkeypatch.setattr(bench, "POSITIONS", ("rerope", "dual_chunk"))
    monkeypatch.setattr(bench, "LONGEST", 1024)
    rows = {row.what: row for row in bench.gpu_passes(SETTING, "1B", gpu)}
    assert len(rows) == 3 * 3 + 2 * 2 + 1
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96
    weights = 2 * (2 * 4096 * 64 + 2 * layer + 5 * 64)
    for length in LENGTHS:
        what = f"1B at {length}, share of the peak of 989 * 10^12 operations a second"
        seconds = length / rows[f"1B at {length}"].value
        scores = 4 * 64 * length * (length + 1) / 2
        done = 2 * length * (2 * layer + 64 * 4096) + 2 * scores
        assert rows[what].value == pytest.approx(done / seconds / 989e12)
        assert rows[what].bar == (0.5 if length == LENGTHS[-1] else None)
        peak = rows[f"1B at {length}, peak memory over {bench.HELD}"]
        assert peak.value == pytest.approx(MOST / (weights + 2 * length * (2 * 64 + 2 * 32)))
    longest = rows["1B, longest power of two that fits"]
    assert (longest.value, longest.equal) == (1024, "longer was not tried")


def test_the_longest_length_ends_where_memory_or_patience_does(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doubling has an end: no memory, a minute a pass, or a million tokens."""
    monkeypatch.setattr(bench, "tokens", lambda _, count: range(count))
    for most, seconds, value, end in (
        (512, 1.0, 512, "1024 ran out of memory"),
        (64, 1.0, 0, "128 ran out of memory"),
        (2**30, 100.0, 128, "longer was not tried: this took 100 s"),
        (2**30, 1.0, 2**20, "longer was not tried"),
    ):
        now = iter(range(10**6))
        clock: Any = SimpleNamespace(
            size=lambda n: n, clock=lambda now=now, seconds=seconds: seconds * next(now)
        )

        def answers(_: Any, asked: Any, most: int = most) -> Any:
            fits = asked[0].length <= most
            return [(0, Response((1.0,), (1, 1)) if fits else OutOfMemory())]

        monkeypatch.setattr(bench, "answers", answers)
        row = bench._gpu_longest(clock, gpu, "1B")
        assert (row.value, row.equal) == (value, end)


def test_what_does_not_fit_has_no_row_and_says_so(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No row has the time of a pass that failed, or of one that went on with smaller sizes."""
    monkeypatch.setattr(bench, "POSITIONS", ())
    monkeypatch.setattr(bench, "LONGEST", 64)
    failures = iter(range(10**6))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: {"num_ooms": next(failures)})
    (longest,) = bench.gpu_passes(SETTING, "1B", gpu)
    assert longest.value == 0
    out = capsys.readouterr().out
    assert all(f"gpu: 1B at {length} is not measured" in out for length in LENGTHS)


def test_sharing_is_measured_for_curves_and_passkeys(gpu: Any) -> None:
    """At every length, over the operations alone and together, as they are counted."""
    rows = list(bench.gpu_sharing(SETTING, "1B", gpu))
    assert len(rows) == 3 * 2 * 2
    assert all(row.value > 0 for row in rows)
    assert rows[8].what.startswith("1B: prefix curve, 8 lengths to 512, each alone")
    assert rows[8].equal.startswith("losses within")
    assert rows[9].what.startswith("the same over the FLOP law")
    assert {row.bar for row in rows} == {None, 1.0}


def test_the_law_of_sharing_is_that_of_the_operations(gpu: Any) -> None:
    """It is the operations counted one by one: rows of layers, keys that each sees, the head."""
    one, other = (tuple(range(start, start + 60)) for start in (0, 100))
    asked = [bench.request((*one[:40], *rest), 90) for rest in (one, other)]
    layer = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96)
    seen = [at + 1 for at in range(100)]

    def cost(places: list[int], heads: int) -> float:
        rows = sum(2 * (layer + 4 * 64 * keys) for keys in places)
        return rows + heads * 2 * 64 * 4096

    together = cost([*seen, *seen[40:]], 22)
    assert bench.sharing_law(gpu.config, asked) == pytest.approx(2 * cost(seen, 11) / together)


def test_unequal_bits_are_counted(gpu: Any) -> None:
    """In float32 on a CPU there are none; a loss and a token that differ are counted."""
    rows = list(bench.gpu_bits(SETTING, "1B", gpu.float()))
    ways = ["run again", "each question alone", "in other sizes"]
    assert [row.what.rpartition(", ")[2] for row in rows] == 2 * ways
    assert [row.value for row in rows] == [0.0] * 6
    assert rows[0].equal.startswith("0 of 568 losses unequal, at most 0.0e+00 nats apart; 0 of 576")
    first = [Response((1.0, 2.0), (3, 4, 5)), Response((4.0, 8.0), (6, 7, 8))]
    second = [Response((1.0, 2.5), (3, 4, 5)), Response((4.0, 8.0), (6, 9, 8))]
    row = bench.unequal("x", first, second)
    assert row.value == 25.0
    assert row.equal == "1 of 4 losses unequal, at most 5.0e-01 nats apart; 1 of 6 likeliest tokens"
