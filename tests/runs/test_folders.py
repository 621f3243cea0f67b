"""Where runs go: no sweep takes the place of another, and a folder of runs is found whole."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.compatible import check_same_sweep
from ropewalk.harness.runs.store import RUN, SAMPLES
from tests import ROOT
from tests.command_line import sweep

Record = dict[str, Any]


@pytest.mark.parametrize("name", ["chat_template.jinja", "merges.txt"])
def test_a_tokenizer_that_changed_is_another_model(name, tiny, docs, tmp_path, ropewalk, rejected):
    model, run = Path(shutil.copytree(tiny, tmp_path / "model")), tmp_path / "run"
    (model / name).write_text("{{ messages }}")
    words = sweep(model, docs, run, task=["perplexity:tail=16"], scaling=["none"], length=["1x"])
    assert ropewalk(*words).status == 0
    (model / name).write_text("{{ messages }} ")
    assert "(tokenizer: " in rejected(*words)


def test_a_folder_keeps_its_sweep(tmp_path):
    """The same sweep may have more cells or fewer."""
    record: Record = json.loads((ROOT / "results" / "reference" / RUN).read_text())
    less = {**record, "cells": record["cells"][::2]}
    check_same_sweep(tmp_path, less, record)
    check_same_sweep(tmp_path, record, less)
    read = record["documents"]["read"]
    texts = {"read": [{**text, "sha256": "0"} for text in read]}
    names = {"read": [{**one, "name": two["name"]} for one, two in pairwise(read)]}
    for changes, told in (
        ({"seed": 5}, "seeds"),
        ({"documents": texts}, "documents"),
        ({"documents": names}, "names of documents"),  # rows behind one that was taken out
    ):
        with pytest.raises(UserError, match=f"another sweep, with other {told}; choose another"):
            check_same_sweep(tmp_path, record, {**record, **changes})


@pytest.mark.parametrize("record", [None, "their own", '{"schema": 1}'])
@pytest.mark.parametrize("samples", ['{"a": 1}\nlast', "one"])
def test_a_folder_that_is_not_a_runs_is_left_as_it_is(
    record, samples, tiny, docs, tmp_path, rejected
):
    """A samples.jsonl of someone else's is not changed, and status 2 names the folder."""
    (tmp_path / SAMPLES).write_text(samples)
    if record is not None:
        (tmp_path / RUN).write_text(record)
    for more in ((), ("--dry-run",)):
        assert f"{tmp_path}" in rejected(*sweep(tiny, docs, tmp_path), *more)
    assert (tmp_path / SAMPLES).read_text() == samples
    assert len(list(tmp_path.iterdir())) == 1 + (record is not None)


def test_a_dry_run_names_a_folder_that_can_never_be_made(tiny, docs, tmp_path, rejected):
    (tmp_path / "text").touch()
    said = rejected(*sweep(tiny, docs, tmp_path / "text" / "run"), "--dry-run")
    assert f"{tmp_path / 'text'} is not a folder" in said


@pytest.mark.parametrize("name", ["llama", "reports"])
def test_models_that_would_share_a_folder_are_refused(name, tiny, docs, tmp_path, rejected):
    other = shutil.copytree(tiny, tmp_path / "other" / name)
    words = (*sweep(tiny, docs, tmp_path / "runs"), "--model", other)
    assert f"one folder called {name!r}" in rejected(*words, "--dry-run")


def test_a_run_names_no_folder(tiny, docs, tmp_path, ropewalk):
    """Model, documents, files of code and paths in options; a failure that names its file, too."""
    mine = "from ropewalk.scaling import pi\n\ndef frequencies(rope, length):\n"
    mine += "    1 // (length < 300)\n"
    (tmp_path / "mine.py").write_text(f"{mine}    return pi.frequencies(rope, length)\n")
    factors = json.dumps({name: [1.0] * 8 for name in ("short_factor", "long_factor")})
    (tmp_path / "factors.json").write_text(factors)
    scaling = [f"{tmp_path}/mine.py", f"longrope:factors={tmp_path}/factors.json"]
    every, tail = f"{docs}/*.txt", ["perplexity:tail=16"]
    words = sweep(tiny, every, tmp_path / "run", scaling=scaling, task=tail)
    assert ropewalk(*words).status == 1
    text = "".join((tmp_path / "run" / name).read_text() for name in ("run.json", "samples.jsonl"))
    asked = json.loads((tmp_path / "run" / "run.json").read_text())["asked"]
    assert (asked["model"], asked["docs"]) == ("llama", "*.txt")
    assert asked["scaling"] == ["mine.py", "longrope:factors=factors.json"]
    assert "at mine.py:4" in text
    private = [str(tmp_path), str(tiny.parent), str(docs.parent)]
    assert [word for word in private if word in text] == []
    assert ropewalk("report", tmp_path / "run").status == 0
    assert ropewalk(*words, "--dry-run").status == 0  # it is the same sweep
