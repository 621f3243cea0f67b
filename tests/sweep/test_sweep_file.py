"""Sweep files: mistakes by line, grids, several models, documents by task, bundled settings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.sweep import this_process
from ropewalk.harness.sweep.entries import expand
from ropewalk.harness.sweep.spec import parse_all
from tests.command_line import lines_of, status
from tests.tiny import save_tiny


@pytest.fixture
def sheet(tmp_path: Path) -> Callable[[str], Path]:

    def write(text: str) -> Path:
        file = tmp_path / "sweep.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def refused(file: Path, **flags: Any) -> str:
    with pytest.raises(UserError) as caught:
        parse_all(file, flags)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nscalings: [none]\n", "no setting is called 'scalings'; did you mean"),
        ("length:\n  - 512\n  - 4q\n", "length: '4q' is not a length; write 512"),
        ("scaling:\n- none\n- yarn:factor=[4,\n", "scaling: the brackets of 'yarn:factor=[4,'"),
        ("task: passkey\nseed: often\n", "seed: it must be a valid integer"),
        ("seed: 1\nmodel: [a, a]\n", "model: name at least one, and none twice."),
        ("revision: x\nmodel: [a, b]\n", "model: a revision is one model's; write each as"),
        ("max_memory: 12XB\n", "max_memory: could not interpret byte unit: XB (given: '12XB')"),
    ],
)
def test_a_mistake_names_the_file_and_the_setting(sheet, text, message):
    file = sheet(text)
    assert refused(file).startswith(f"{file}: {message}")


def test_a_grid_is_every_combination():
    wanted = [f"yarn:factor={f},ramp=paper,beta_fast={b}" for f in (4, 8) for b in (16, 32)]
    assert expand("yarn:factor=[4, 8],ramp=paper,beta_fast=[16,32]") == wanted
    assert expand("./odd[1].py:factor=[2]") == ["./odd[1].py:factor=2"]


@pytest.mark.usefixtures("scored")
@pytest.mark.slow
def test_several_models_are_measured_and_reported_together(
    tiny, docs, tmp_path, ropewalk, monkeypatch
):
    """One that cannot be loaded costs the others nothing; a wrong config is an error before all."""
    other, hollow, unlike = (tmp_path / name for name in ("other", "hollow", "unlike"))
    save_tiny(other, seed=7)
    save_tiny(hollow)
    save_tiny(unlike, max_position_embeddings=-1)

    def load(checkpoint: Checkpoint) -> Any:
        if checkpoint.label == "hollow":
            raise UserError("its weights cannot be read.")
        return load_weights(checkpoint)

    monkeypatch.setattr(this_process, "load_weights", load)
    words = ["--docs", docs, "--task", "perplexity:tail=16", "--scaling", "none", "--length", "1x"]
    assert "name the folder of their runs" in ropewalk("run", "--model", tiny, other, *words).err
    words += ["--out", tmp_path / "runs"]
    assert ropewalk("run", "--model", unlike, tiny, *words).status == 2
    assert not (tmp_path / "runs").exists()
    done = ropewalk("run", "--model", hollow, tiny, other, *words)
    assert (done.status, "hollow is left out: its weights" in done.err) == (1, True)
    for name in ("llama", "other"):
        record = json.loads((tmp_path / "runs" / name / "run.json").read_text())
        assert record["model"]["name"] == record["asked"]["model"] == name
    table = pd.read_csv(tmp_path / "runs" / "reports" / "cells.csv")
    assert list(table["scaling"]) == ["llama", "other"]
    assert table["score"].nunique() == 2
    words[-1] = tmp_path / "runs"
    assert "has the runs of other sweeps, as llama" in ropewalk("run", "--model", tiny, *words).err
    done = ropewalk("run", "--model", tiny, other, *words, "--dry-run")
    assert (done.status, done.out.count("Complete: nothing to measure")) == (0, 2)


@pytest.mark.slow
def test_a_task_may_have_documents_of_its_own(tiny, docs, tmp_path, sheet):
    (tmp_path / "filler.txt").write_text("The rope is long. " * 40, encoding="utf-8")
    file = sheet(
        f"model: {tiny}\nlength: 320\nscaling: none\nout: {tmp_path / 'run'}\n"
        "task: ['perplexity:tail=16', 'passkey:depths=1,trials=1,filler=documents']\n"
        f"docs:\n  perplexity: {docs}\n  passkey: {tmp_path / 'filler.txt'}\n"
    )
    assert status("run", file) == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    read = {(entry["docs"], entry["name"]) for entry in record["documents"]["read"]}
    assert read == {
        *((docs.name, f"document-{index}.txt") for index in range(3)),
        ("filler.txt", "filler.txt"),
    }
    units = {line["unit"] for line in lines_of(tmp_path / "run") if "perp" in line["task"]}
    assert units == {f"document-{index}.txt" for index in range(3)}


def test_the_mistakes_of_a_stage_are_told_together(tiny, sheet, capsys):
    settings = f"model: {tiny}\nseed: often\nlength: [1x, 4q]\n"
    names = f"model: {tiny}\nscaling: [none, yran]\ntask: [niha]\n"
    tasks = f"model: {tiny}\nscaling: none\ntask: [niah, qa]\nlength: 1x\n"
    for text, beginnings in (
        (settings, ["length: '4q' is not a length", "seed: it must be"]),
        (names, ["no method is called 'yran'", "no task is called 'niha'"]),
        (tasks, ["task niah: a prompt and its answer need", "task qa: no questions given"]),
    ):
        assert status("run", sheet(text), "--dry-run") == 2
        first, *lines = capsys.readouterr().err.splitlines()
        assert first == "ropewalk: 2 problems with this sweep:"
        for line, begin in zip(sorted(lines), sorted(beginnings), strict=True):
            assert begin in line


@pytest.mark.slow
def test_a_papers_curve_is_measured_and_stands_beside_the_published_one(tmp_path, capsys):
    """Two commands, by a tiny model under the name of the paper's; flags win over the sweep."""
    model = save_tiny(tmp_path / "llama-7b", max_position_embeddings=2048)
    (tmp_path / "book.txt").write_text("the cat sat on a mat and ran to sea by night. " * 100)
    words = ["pi_paper", "--model", model, "--docs", tmp_path / "book.txt", "--length", "2048"]
    assert status("run", *words, "--out", tmp_path / "run") == 0
    asked = json.loads((tmp_path / "run" / "run.json").read_text())["asked"]
    assert (asked["scaling"], asked["length"]) == (["none", "pi:factor=4", "pi:factor=8"], ["2048"])
    assert asked["task"] == ["perplexity:protocol=sliding,stride=256"]
    cells = pd.read_csv(tmp_path / "run" / "reports" / "cells.csv")
    capsys.readouterr()
    assert status("compare", tmp_path / "run", "--out", tmp_path) == 1  # a tiny model is no Llama
    (table,) = tmp_path.glob("compare-*.csv")
    row = pd.read_csv(table).query("scaling == 'none' and length == 2048").iloc[0]
    own = cells.query("scaling == 'none'").iloc[0]
    assert float(row["published"]) == 7.2
    assert row["measured"] == pytest.approx(own["score"])
    assert row["difference"] == pytest.approx(own["score"] / 7.2 - 1)
