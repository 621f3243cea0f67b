"""What must hold for tables as people read them: terminal, Markdown, LaTeX, spreadsheet."""

import json

import pandas as pd
import pytest

from ropewalk.harness.reports import _write
from ropewalk.harness.reports._write import write_reports
from tests import small_runs
from tests.frames import PASSKEY, sweep

FRAME = sweep()


@pytest.mark.slow
def test_a_run_writes_its_numbers_one_text_and_figures_and_others_on_request(tmp_path, monkeypatch):
    monkeypatch.setattr(_write, "FIGURES", small_runs.FIGURES)
    write_reports(FRAME, tmp_path)
    usual = {"results.json", "cells.csv", "report.md", "curves.png", "answer.png", "retrieval.png"}
    assert {file.name for file in tmp_path.iterdir()} == usual
    rows = json.loads((tmp_path / "results.json").read_text())
    keys = ["model", "task", "metric", "method", "length", "score", "low", "high", "n", "unit"]
    assert [*rows[0]] == keys
    table = pd.read_csv(tmp_path / "cells.csv")
    assert [row["score"] for row in rows if row["score"] is not None] == [*table["score"].dropna()]
    write_reports(FRAME[FRAME["task"] != PASSKEY], tmp_path, formats=("tex", "svg", "parquet"))
    more = {"report.tex", "cells.parquet", "curves.svg", "answer.svg"}
    assert {file.name for file in tmp_path.iterdir()} == usual - {"retrieval.png"} | more
    latex = (tmp_path / "report.tex").read_text()
    assert r"yarn & \textbf{27.9 [26.0, 30.2]}" not in latex  # at 256 all methods are the same
    assert r"\textbf{25.8 [24.0, 27.8]}" in latex
    assert latex.count(r"\textbf") == 3
    assert r"\label{tab:scores-1}" in latex
