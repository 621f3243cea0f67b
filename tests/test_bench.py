"""The benchmark's own counts, and its table, in a run of seconds."""

from __future__ import annotations

import csv
import importlib
import runpy
from pathlib import Path

import pytest

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


def test_every_row_is_a_file_that_measures() -> None:
    """A file of scripts/benchmarks/rows is a row: it defines ``measure`` and is named for it."""
    files = list((ROOT / "scripts" / "benchmarks" / "rows").glob("[!_]*.py"))
    assert len(files) >= 9
    assert all("def measure(setting: Setting) -> list[Row]:" in f.read_text() for f in files)
