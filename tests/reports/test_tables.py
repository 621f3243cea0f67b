"""What must hold for tables as people read them: terminal, Markdown, LaTeX, spreadsheet."""

import re

import pytest

from ropewalk.harness import plugins
from ropewalk.harness.reports import _write
from ropewalk.harness.reports._write import write_reports
from ropewalk.harness.reports.writing.sentences import text
from tests import small_runs
from tests.frames import sweep

FRAME = sweep()


def test_a_small_score_keeps_its_digits():
    """A divergence of 0.004 nats is no 0.00, and a tenth of it is another number."""
    cell = {"low": 0.0002, "high": 0.0004, "metric": "window_kl", "status": "ok"}
    assert text({**cell, "score": 0.0003}) == "0.0003 [0.0002, 0.0004]"
    assert text({**cell, "score": 0.87, "low": None}) == "0.87"
    assert text({**cell, "score": -31.25, "low": None}) == "-31.2"


@pytest.mark.slow
def test_a_backtick_in_a_name_opens_no_markup(tmp_path):
    evil = "a`<img src=x>"
    frame = sweep(scalings=("none", evil), models=("m <b>*x*</b>", "two"), lengths=(256, 512))
    write_reports(frame, tmp_path, ["best", "differences"])
    for name in ("best", "differences"):
        text = (tmp_path / f"{name}.md").read_text()
        outside = re.sub(r"`[^`\n]*`", "", re.sub(r"\\.", "", text))
        assert "<img" not in outside
        assert "<b>" not in outside


def test_a_run_writes_three_reports_and_those_that_its_folder_has(tmp_path, monkeypatch):
    monkeypatch.setattr(_write, "DEFAULT", small_runs.DEFAULT)
    three = {"scores", "best", "answer", "curves"}
    four = {*three, "regret"}
    for requested, stems in ((None, three), (["regret"], four), (None, four)):
        written = write_reports(FRAME, tmp_path, requested)
        assert {file.name.split(".")[0] for file in tmp_path.iterdir()} == stems
    assert {file.name.split(".")[0] for file in written.files} == stems


@pytest.mark.slow
def test_a_table_has_its_figure_and_all_is_every_report(tmp_path):
    written = write_reports(FRAME, tmp_path, ["all"])
    made = {file.name.split(".")[0] for file in written.files}
    assert made | {*written.skipped} == {*plugins.names("report")}
    assert (tmp_path / "differences.csv").exists()
    assert (tmp_path / "retrieval.png").exists()
    write_reports(FRAME[FRAME["scaling"] == "none"], tmp_path, ["differences"])
    assert not (tmp_path / "differences.csv").exists()
