"""The benchmark's own counts, and its table, in a run of seconds."""

from __future__ import annotations

import csv
import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import ROOT


@pytest.mark.slow
def test_the_counts_of_the_benchmark_are_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A curve forwards its longest length's tokens and operations; rows of other names stay."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    rows = importlib.import_module("benchmarks.rows.e_overhead")
    monkeypatch.setattr(rows, "measure", lambda setting: [rows._share(setting, "XS", 5.0)])

    def bench(row: str) -> list[dict[str, str]]:
        """Run the benchmark as its script does and return the rows of its table."""
        words = ["--quick", "--repeats", "1", "--out", str(tmp_path), "--only", row]
        monkeypatch.setattr("sys.argv", ["bench", *words])
        runpy.run_module("benchmarks", run_name="__main__")
        (table,) = tmp_path.glob("*.csv")
        with table.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    first = bench("a3")
    assert [(row["name"], float(row["value"]), row["met"]) for row in first] == [
        ("a3", 1.0, "True"), ("a3", 1.0, ""),
    ]  # fmt: skip
    both = bench("e")
    assert both[:2] == first
    assert {row["name"] for row in both} == {"a3", "e"}
    (page,) = (file.read_text(encoding="utf-8") for file in tmp_path.glob("*.md"))
    assert "| a3 | tokens forwarded over the longest length, 8 lengths | 1x |" in page


def test_a_smoke_test_needs_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its numbers are of other lengths, so they are not written over the committed table."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setattr("sys.argv", ["bench", "--quick", "--only", "no-row"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("benchmarks", run_name="__main__")
    assert stopped.value.code == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "zz"], "a1, a2, a3, b, c, d, e, f, g, gpu, h, n, p, r, s, t, u), not zz."),
        (["--only", "a3", "A1"], "not A1."),
        (["--only", "a1,a2"], "with spaces between them"),
        (["--only", "gpu"], "--only gpu needs --device cuda"),
        (["--only", "c", "--device", "cuda"], "--only c needs --device cpu"),
        (["--device", "cuda:1"], "the GPUs that PyTorch sees are 1."),
        (["--device", "nosuch"], "--device is cpu, cuda or cuda:N, not nosuch."),
        (["--repeats", "0"], "--repeats is a number from 1 on, not 0."),
        (["--repeats", "x"], "argument --repeats: invalid int value: 'x'"),
        (["--out", __file__], "--out takes a folder"),
        (["--out", f"{__file__}/tables"], "--out takes a folder"),
    ],
)
def test_a_wrong_word_is_one_sentence(
    words: list[str], told: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Nothing is measured; the sentence says what is allowed, and the exit status is 2."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("sys.argv", ["bench", *words])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("benchmarks", run_name="__main__")
    out, error = capsys.readouterr()
    assert (stopped.value.code, out) == (2, "")
    assert error.startswith("scripts/bench: ")
    assert error.count("\n") == 1
    assert told in error


def test_a_row_that_cannot_be_measured_ends_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the tool of row p is not installed, the row says so and no table is written."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["--quick", "--out", str(tmp_path / "out"), "--only", "p"]
    monkeypatch.setattr("sys.argv", ["bench", *words])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("benchmarks", run_name="__main__")
    assert stopped.value.code == 2
    assert "p is not measured: it needs llama-perplexity" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_row_keeps_the_run_that_measured_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its day, machine and speed stay when other rows are measured on another day."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    setting, table = (
        importlib.import_module(f"benchmarks.{name}") for name in ("setting", "table")
    )
    one, other = (
        setting.row("a", "one", [1.0], "x", 2.0),
        setting.row("b", "other", [3.0], "x", None),
    )
    then = table.Measured("2026-01-01", "a machine", "float32 1 and 2")
    now = table.Measured("2026-01-02", "the same, newer", "float32 3 and 4")
    table.write([one, other], then, tmp_path, "table")
    page, numbers = table.write([other], now, tmp_path, "table")
    assert table.read(numbers) == [(one, then), (other, now)]
    told = page.read_text(encoding="utf-8")
    assert "1. 2026-01-01, a machine; float32 1 and 2\n2. 2026-01-02, the same, newer;" in told
    assert "| a | one | 1x |  | ≥ 2x | **no** |  | 1 |\n| b | other | 3x |  |  |  |  | 2 |" in told


def test_committed_tables_are_those_of_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is what its CSV file gives, and no page was edited."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    table = importlib.import_module("benchmarks.table")
    files = list((ROOT / "results" / "benchmarks").glob("*.csv"))
    assert files
    for file in files:
        page = file.with_suffix(".md").read_text(encoding="utf-8")
        assert page == table.markdown(table.read(file))


def test_every_row_is_a_file_that_measures() -> None:
    """A file of scripts/benchmarks/rows is a row: it defines ``measure`` and is named for it."""
    files = list((ROOT / "scripts" / "benchmarks" / "rows").glob("[!_]*.py"))
    assert len(files) >= 9
    assert all("def measure(setting: Setting) -> list[Row]:" in f.read_text() for f in files)


@pytest.mark.slow
def test_threads_are_measured_by_stage_and_given_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each stage of both passes has a ratio, the threads are set back, and a busy machine is told.

    Where two threads have half of two cores, other programs run, and no ratio is given.
    """
    monkeypatch.syspath_prepend(ROOT / "scripts")
    row = importlib.import_module("benchmarks.rows.t_threads")
    setting = importlib.import_module("benchmarks.setting").Setting(quick=True, repeats=1)
    monkeypatch.setattr(row.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    used: list[int] = []
    timed = row.by_operator
    monkeypatch.setattr(
        row, "by_operator", lambda *given: used.append(torch.get_num_threads()) or timed(*given)
    )
    before = torch.get_num_threads()
    rows = row.measure(setting)
    assert torch.get_num_threads() == before
    assert used == [1, 2] * 4
    stages = [found.what.rpartition(": ")[2] for found in rows]
    assert stages == 2 * [row.PRODUCTS, row.ATTENTION, row.REST, row.HEAD, row.WHOLE]
    assert all(found.value > 0 for found in rows)
    busy = importlib.import_module("benchmarks.setting").Setting(repeats=1)
    monkeypatch.setattr(row, "_pass", lambda *_: (rows, 0.5))
    assert row.measure(busy) == []
    assert "2 threads had 50% of as many cores" in capsys.readouterr().out


@pytest.mark.slow
def test_threads_work_in_a_process_that_began_with_one() -> None:
    """After OMP_NUM_THREADS=1 a second thread still takes its part of a product."""
    code = (
        "import time, torch; torch.set_num_threads(2); a = torch.randn(2000, 2000); a @ a\n"
        "all, own = time.process_time(), time.thread_time(); a @ a; a @ a\n"
        "print((time.process_time() - all) / (time.thread_time() - own))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert float(told.stdout) > 1.3


@pytest.mark.parametrize("length", [64, 512, 700])
def test_tiled_attention_is_causal_attention(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is softmax in float64, within rounding, where lengths end inside a tile too."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    tiled = importlib.import_module("benchmarks.rows.u_tiled")
    torch.manual_seed(length)
    query, key, value = (torch.randn(h, length, 64, dtype=torch.bfloat16) for h in (9, 3, 3))
    scores = query.double() @ key.double().repeat_interleave(3, 0).mT / 8
    unseen = torch.ones(length, length, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(unseen, float("-inf")).softmax(-1)
    exact = shares @ value.double().repeat_interleave(3, 0)
    for way in (tiled.tiled, tiled.fused):
        apart = (way(query, key, value) - exact).norm(dim=-1) / exact.norm(dim=-1)
        assert apart.max() <= tiled.ALLOWED


@pytest.mark.slow
def test_tiled_attention_is_measured_at_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smoke test gives the ratio and both speeds, and the ratio is that of the speeds."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    setting = importlib.import_module("benchmarks.setting").Setting(quick=True)
    tiled = importlib.import_module("benchmarks.rows.u_tiled")
    rows = tiled.measure(setting)
    assert len(rows) == 3 * len(tiled.LENGTHS)
    for ratio, one, other in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert ratio.value == pytest.approx(one.value / other.value)
        assert "rows within" in ratio.equal


@pytest.mark.slow
def test_a_profile_accounts_for_the_whole_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of a column sum to all, and every layer, attention and head has called its product."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    profiled = importlib.import_module("benchmarks.profiled")
    setting = importlib.import_module("benchmarks.setting").Setting(quick=True)
    monkeypatch.setattr(profiled, "PASSES", 1)
    lines = [line.split(" | ") for line in profiled.page(setting).splitlines() if "% |" in line]
    assert {"| products of the layers", "| products of the head", "| attention"} <= {
        line[0] for line in lines
    }
    for column in (1, 2):
        shares = [float(line[column].rstrip(" |").rstrip("%")) for line in lines]
        assert all(share >= 0 for share in shares)
        assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))
