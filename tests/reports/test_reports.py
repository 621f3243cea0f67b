"""What must hold for every report in the folder, and for the files of a run."""

import json
import re
import time

import pandas as pd
import pytest
from matplotlib.figure import Figure

from ropewalk.harness.plugins import load, names
from ropewalk.harness.reports import _write
from ropewalk.harness.reports._text import as_text, latex
from ropewalk.harness.reports._write import write_reports
from ropewalk.harness.runs.store import REPORTS
from ropewalk.harness.stats.cells import cell_scores
from tests import small_runs
from tests.frames import PASSKEY, PERPLEXITY, TWELVE, sweep

FRAME = sweep()
FRAMES = {
    "one cell": sweep(scalings=("none",), lengths=(512,)),
    "perplexity": FRAME[(FRAME["task"] == PERPLEXITY) & (FRAME["length"] > 512)],
    "nothing measured": FRAME[FRAME["status"] == "out_of_memory"],
}
MANY = sweep(models=("toy-7m", "other"), scalings=TWELVE, lengths=(256, 2048))


@pytest.mark.parametrize("name", names("report"))
@pytest.mark.parametrize(
    "frame", [*FRAMES.values(), pytest.param(MANY, marks=pytest.mark.slow)], ids=[*FRAMES, "many"]
)
def test_make_returns_a_table_or_a_figure_or_says_why_not(name, frame):
    """Every report takes every sweep; one that does not apply raises ValueError with words."""
    before = frame.copy(deep=True)
    try:
        made = load("report", name).module.make(frame)
    except ValueError as error:
        made = str(error)
    assert isinstance(made, pd.DataFrame | Figure) or len(made) > 20
    pd.testing.assert_frame_equal(frame, before)


def test_two_scores_for_one_cell_are_refused():
    one = FRAME[FRAME["scaling"] == "yarn"]
    with pytest.raises(ValueError, match=r"yarn, 256 has several scores"):
        cell_scores(pd.concat([one.assign(run="a"), one.assign(run="b", score=1.0)]))


@pytest.mark.slow
def test_a_run_writes_its_numbers_one_text_and_figures_and_others_on_request(tmp_path, monkeypatch):
    monkeypatch.setattr(_write, "FIGURES", small_runs.FIGURES)
    began = time.time()
    folder = tmp_path / REPORTS
    write_reports(FRAME, folder)
    usual = {"results.json", "cells.csv", "report.md", "curves.png", "answer.png"}
    found = {"retrieval.csv", "retrieval.md", "retrieval.png"}
    assert {file.name for file in folder.iterdir()} == usual | found
    rows = json.loads((folder / "results.json").read_text())
    keys = ["model", "task", "metric", "method", "length", "score", "low", "high", "n", "unit"]
    assert [*rows[0]] == keys
    table = pd.read_csv(folder / "cells.csv")
    assert [row["score"] for row in rows if row["score"] is not None] == [*table["score"].dropna()]
    some = FRAME[FRAME["task"] != PASSKEY]
    write_reports(some, folder, formats=("tex", "svg", "parquet"), since=time.time())
    more = {"report.tex", "cells.parquet", "curves.svg", "answer.svg"}
    assert {file.name for file in folder.iterdir()} == usual | more
    text = (folder / "report.tex").read_text()
    assert r"yarn & \textbf{27.9 [26.0, 30.2]}" not in text  # at 256 all methods are the same
    assert r"\textbf{25.8 [24.0, 27.8]}" in text
    assert text.count(r"\textbf") == 3
    assert r"\label{tab:scores-1}" in text
    write_reports(some, folder, since=began)
    assert {file.name for file in folder.iterdir()} == usual | more
    write_reports(some, folder, since=time.time())
    assert {file.name for file in folder.iterdir()} == usual


def test_a_report_that_does_not_apply_deletes_no_file_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(_write, "FIGURES", ("retrieval",))
    own = [tmp_path / f"retrieval.{suffix}" for suffix in ("png", "csv", "md")]
    for file in own:
        file.write_text("mine")
    write_reports(FRAME[FRAME["task"] != PASSKEY], tmp_path)
    assert [file.read_text() for file in own] == ["mine"] * 3


@pytest.mark.parametrize(("columns", "parts"), [(80, 1), (24, 2)])
def test_a_table_on_the_screen_reads_back_by_two_spaces(columns, parts, monkeypatch):
    """Names and values contain single spaces; what is too wide is below, by the same methods."""
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = {
        "a method": ["pi", "a b"], "att. factor": [1, 17], "1k (4×)": ["8.4 [7, 9]", "0 %"]
    }  # fmt: skip
    text = as_text(pd.DataFrame(rows))
    shown = [[re.split(" {2,}", line) for line in part.split("\n")] for part in text.split("\n\n")]
    assert len(shown) == parts
    found = {}
    for part in shown:
        found |= {name: values for name, *values in zip(*part, strict=True)}
    assert found == {name: [*map(str, values)] for name, values in rows.items()}


def test_a_table_of_one_column_on_the_screen_has_its_rows():
    text = as_text(pd.DataFrame({"scaling": ["pi", "yarn"]}))
    assert text.split() == ["scaling", "pi", "yarn"]


def test_a_table_of_latex_has_its_numbers_and_escapes_names():
    table = pd.DataFrame({"scaling": ["./a_b%.py"], "1024 (4×)": ["8.37 [7.2, 9.8]"]})
    text = latex(table, "Scores.", "scores")
    assert r"./a\_b\%.py & 8.37 [7.2, 9.8]" in " ".join(text.split())
    assert r"\caption{Scores.}" in text
