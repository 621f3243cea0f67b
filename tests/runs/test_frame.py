"""The frame of a run that is not whole, and of runs that may or may not be joined."""

import json
import shutil
from pathlib import Path

import pytest

from ropewalk.harness.commands.run import Run, frame
from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.frame import SAMPLE, make_frame
from ropewalk.harness.runs.store import RUN, SAMPLES
from ropewalk.harness.stats.cells import cell_scores
from tests import ROOT
from tests.command_line import lines_of, put_lines
from tests.small_runs import changed, sweep

REFERENCE = ROOT / "results" / "reference"


def test_a_half_measured_cell_is_never_shown_as_a_whole_one(run):
    lines = (run / SAMPLES).read_text().splitlines(keepends=True)
    (run / SAMPLES).write_text("".join(lines[:2]))
    table = cell_scores(make_frame([run]))
    assert table["status"].tolist() == ["2 of 3 ok, 1 not_measured"]
    assert table["n"].tolist() == [2]


@pytest.mark.slow
def test_a_frame_has_the_values_of_the_samples():
    """As a naive join of the two files has them: every sample of every cell, with its facts."""
    frame, run = make_frame([REFERENCE]), json.loads((REFERENCE / RUN).read_text())
    keys = {(c["task"], c["scaling"], c["length"]): c["key"] for c in run["cells"]}
    found = {(line["cell"], line["question"]): line for line in lines_of(REFERENCE)}
    assert len(frame) == sum(
        len(run["tasks"][cell["task"]]["questions"][str(cell["length"])]) for cell in run["cells"]
    )
    for row in frame.to_dict("records"):
        line = found[keys[row["task"], row["scaling"], row["length"]], row["question"]]
        expected = {**line["facts"], **{name: line.get(name) for name in SAMPLE}}
        assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("change", [{"methods": 5}, {"sessions": None}, {"cells": [{}]}])
def test_a_damaged_record_is_one_sentence(change, run, rejected, tmp_path):
    record = json.loads((run / RUN).read_text())
    (run / RUN).write_text(json.dumps(record | change))
    assert f"{run / RUN} cannot be read: " in rejected("report", run, "--out", tmp_path / "out")


def test_a_run_beside_itself_counts_its_samples_once(run, tmp_path):
    lines = (run / SAMPLES).read_text().splitlines(keepends=True)
    other = Path(shutil.copytree(run, tmp_path / "other"))
    (run / SAMPLES).write_text("".join(lines[:2]))
    (other / SAMPLES).write_text("".join(lines[1:]))
    joined = make_frame([run, other])
    assert joined["unit"].is_unique
    assert cell_scores(joined)[["n", "status"]].to_numpy().tolist() == [[3, "ok"]]


def test_a_run_has_the_samples_of_its_own_folder_alone(run):
    """Other runs may be in it."""
    before = frame(run)
    changed(run, run / "inner", lambda record: record["model"].update(name="inner"))
    for after in (frame(run), Run((run,)).frame()):
        assert after.equals(before)


@pytest.mark.slow
def test_one_label_for_two_settings_is_refused(run, tiny, docs, tmp_path):
    words = ("--task", "passkey:depths=1,trials=1", "--length", "5x", "--seed", "1")
    first = sweep(tiny, docs, tmp_path / "1", *words)
    second = changed(first, tmp_path / "2", lambda record: record.update(seed=2))
    with pytest.raises(UserError, match="have different seeds; report them separately"):
        make_frame([first, second])
    (tmp_path / "pi.py").write_text(
        "from ropewalk.scaling.ntk import frequencies  # another method under a known name\n"
    )
    mine = sweep(tiny, docs, tmp_path / "mine", "--scaling", str(tmp_path / "pi.py"))
    with pytest.raises(UserError, match="with other settings or on other documents; report"):
        make_frame([run, mine])


def test_samples_of_another_task_version_are_not_scored(run, tmp_path):
    old = changed(
        run, tmp_path / "old", lambda r: r["tasks"]["perplexity:tail=16"].update(version=0)
    )
    with pytest.raises(UserError, match="was measured with another version of perplexity:tail=16"):
        make_frame([old])


def test_lengths_measured_on_more_documents_are_not_one_curve(run, tiny, docs, tmp_path):
    long = sweep(tiny, docs, tmp_path / "long", "--length", "40x")
    same = Path(shutil.copytree(long, tmp_path / "other" / run.name))
    for other in (long, same):  # two folders of one name are two runs
        with pytest.raises(UserError, match="are not the same documents or windows"):
            make_frame([run, other])


def test_a_measured_sample_stands_before_a_failed_one(run, tmp_path):
    poor = Path(shutil.copytree(run, tmp_path / "poor"))
    records = lines_of(run)
    for record in records:
        record |= {"status": "out_of_memory", "value": None, "weight": 0}
    put_lines(poor, records)
    for order in ([run, poor], [poor, run]):
        assert (make_frame(order)["status"] == "ok").all()
