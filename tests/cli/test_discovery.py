"""What a newcomer finds: every plug-in in full, and files to begin with that run as they are."""

from pathlib import Path

import pandas as pd
import pytest

from ropewalk.harness.commands.list import describe
from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import FOLDERS, load, names
from tests.command_line import sweep

EVERY = [(kind, name) for kind in FOLDERS for name in names(kind)]


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_everything_that_is_listed_is_described(kind, name):
    """Each has all its options with their defaults, and an example whose options are right."""
    (found,) = (one for one in describe(name) if one.kind == kind)
    assert [option[0] for option in found.options] == list(load(kind, name).options)
    named = next(word for word in found.example.split()[1:] if word.startswith(name))
    assert load(kind, named).options.keys() == {option[0] for option in found.options}


def test_a_file_of_ones_own_is_described_by_its_contract(tmp_path):
    """What kind it is follows from what it defines; what raises while it is asked has no range."""
    file = tmp_path / "mine.py"
    file.write_text("def frequencies(rope, length, *, kept: float = 0.5):\n    raise SystemExit\n")
    (found,) = describe(str(file))
    assert (found.kind, found.name) == ("method", "mine")
    assert found.options == (("kept", "number", "0.5", ""),)
    file.write_text("def nothing(): ...\n")
    with pytest.raises(UserError, match="is no plug-in: a method defines"):
        describe(str(file))
    with pytest.raises(UserError, match=r"nothing is called 'yran'; did you mean 'yarn'\?"):
        describe("yran")


@pytest.mark.slow
def test_a_begun_task_and_a_begun_report_run(tiny, docs, tmp_path, ropewalk, monkeypatch):
    """The files are measured and reported as they are written, under the commands that are told."""
    monkeypatch.chdir(tmp_path)
    assert "run --scaling none yarn --task ./my_task.py" in ropewalk("new", "task", "my_task").out
    assert (
        "ropewalk report RUN --report ./my_report.py" in ropewalk("new", "report", "my_report").out
    )
    run = sweep(tiny, docs, Path("run"), task=["./my_task.py:trials=2"], length=["1x", "2x"])
    assert ropewalk(*run).status == 0
    words = ["--report", "cells", "./my_report.py:digits=2", "--task", "./my_task.py:trials=2"]
    assert ropewalk("report", "run", *words).status == 0
    scores = pd.read_csv("run/reports/cells.csv")
    assert set(scores["status"]) == {"ok"}
    assert set(scores["n"]) == {6}
    assert (Path("run") / "reports" / "my_report.csv").exists()
    assert {"seconds", "score"} <= set(pd.read_csv("run/reports/my_report.csv"))
    for kind in ("task", "report"):
        (found,) = describe(f"./my_{kind}.py")
        assert (found.kind, len(found.options)) == (kind, 1)
