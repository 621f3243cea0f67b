"""A run's record is enough to measure it again, or it is said what is missing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.runs.provenance import command
from harness.runs.store import RUN, SAMPLES, write_run
from harness.sweep.plan import make_plan
from harness.sweep.record import describe
from harness.sweep.rerun import compare, recorded_settings
from harness.sweep.spec import parse
from tests.command_line import Ropewalk, lines_of, put_lines
from tests.small_runs import changed
from tests.tiny import save_tiny

Rerun = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rerun(tmp_path: Path, ropewalk: Ropewalk, monkeypatch: pytest.MonkeyPatch) -> Rerun:
    monkeypatch.chdir(tmp_path)

    def rerun(*words: str | Path) -> tuple[int, str, str]:
        status, *told = ropewalk("reproduce", *words)
        return status, *(" ".join(text.split()) for text in told)

    return rerun


def test_a_run_is_measured_again_to_the_same_bits(run, rerun, tmp_path):
    status, told, _ = rerun(run)
    assert status == 0
    assert "3 of 3 samples are equal bit for bit: reproduced." in told
    assert (tmp_path / "results" / "reproduce-run" / SAMPLES).exists()


def test_samples_that_were_there_before_are_not_taken_for_measured_again(run, rerun, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    status, told, _ = rerun(run, "--out", copy)
    assert "3 of 3 samples were in" in told
    assert (status, "compared as they are" in told) == (0, True)
    lines = (copy / SAMPLES).read_text().splitlines(keepends=True)
    (copy / SAMPLES).write_text("".join(lines[:-1]))
    assert "2 of 3 samples were in" in rerun(run, "--out", copy)[1]
    assert "samples were in" not in rerun(run, "--out", tmp_path / "new")[1]


def test_a_folder_of_another_sweep_is_told_before_anything_is_measured(run, rerun, tmp_path):

    def wider(record: dict[str, Any]) -> None:
        record["cells"].append({**record["cells"][0], "scaling": "none"})

    other = changed(run, tmp_path / "wider", wider)
    assert (
        "wider has 1 cell that this sweep does not name, as none, " in rerun(run, "--out", other)[1]
    )
    seeds = changed(run, tmp_path / "seeds", lambda record: record.update(seed=5))
    status, _, told = rerun(run, "--out", seeds, "--dry-run")
    assert (status, "has another sweep, with other seeds" in told) == (2, True)


def test_other_weights_documents_and_questions_are_named(run, rerun, docs, tmp_path):
    other = save_tiny(tmp_path / "elsewhere" / "llama", seed=5)
    status, _, told = rerun(run, "--model", other)
    assert status == 2
    assert "cannot be measured again as it was: model.fingerprint is" in told
    texts = Path(shutil.copytree(docs, tmp_path / "texts"))
    first = sorted(texts.iterdir())[0]
    first.write_text(first.read_text() + " more")
    status, _, told = rerun(run, "--docs", texts)
    assert status == 2
    assert ".sha256 is" in told or "questions" in told
    old = changed(
        run, tmp_path / "old", lambda r: r["tasks"]["perplexity:tail=16"].update(version=0)
    )
    status, _, told = rerun(old)
    assert (status, "tasks.perplexity:tail=16.version is 1, the record has 0." in told) == (2, True)


def test_moved_files_are_found_by_their_content(run, rerun, tiny, docs, tmp_path):
    model = shutil.copytree(tiny, tmp_path / "moved" / "weights")
    texts = shutil.copytree(docs, tmp_path / "moved" / "texts")
    asked = {"model": "gone", "docs": "gone", "device": "cuda:7"}
    gone = changed(run, tmp_path / "gone", lambda r: r["asked"].update(asked))
    found = ("--model", model, "--docs", texts)
    status, _, told = rerun(gone, *found)
    assert (status, "cuda:7" in told) == (2, True)
    status, told, _ = rerun(gone, *found, "--device", "cpu")
    assert (status, "3 of 3 samples are equal bit for bit" in told) == (0, True)


def test_documents_of_one_of_two_tasks_may_move(rerun, tiny, docs, tmp_path):
    texts, embedded = shutil.copytree(docs, tmp_path / "texts"), "embedded:limit=1,max_chars=2000"
    given = {
        "model": str(tiny),
        "docs": {"perplexity:tail=16": str(texts), "perplexity:tail=8": embedded},
        "task": ["perplexity:tail=16", "perplexity:tail=8"],
        "length": "2x",
        "scaling": "none",
    }
    record = describe(make_plan(parse(None, given)), None, measuring=False)
    for name, other in (("one", embedded), ("two", str(tmp_path / "more"))):
        record["asked"]["docs"] = {**given["docs"], "perplexity:tail=8": other}
        (tmp_path / name).mkdir()
        write_run(tmp_path / name, record)
    shutil.move(texts, tmp_path / "moved")
    status, told, _ = rerun(tmp_path / "one", "--docs", tmp_path / "moved", "--dry-run")
    assert (status, "every question are what they were." in told) == (0, True)
    status, _, told = rerun(tmp_path / "two", "--docs", tmp_path / "moved", "--dry-run")
    assert (status, "the run has documents in 2 (" in told) == (2, True)


def test_samples_that_differ_are_counted_and_the_furthest_named(run, rerun, tmp_path):
    """One value a thousandth off, one sample missing: not reproduced, exit status 1."""
    altered = Path(shutil.copytree(run, tmp_path / "altered"))
    lines = lines_of(altered)
    lines[1]["value"] *= 1.001
    lines[2]["status"] = "not_finite"
    put_lines(altered, lines)
    found = compare(altered, run)
    assert (found.samples, found.equal, len(found.differing)) == (3, 1, 1)
    assert found.largest == pytest.approx(0.001, rel=0.01)
    assert found.where.endswith(lines[1]["unit"])
    status, told, _ = rerun(altered)
    assert status == 1
    assert "not reproduced within 0.0001." in told


@pytest.mark.parametrize(("key", "value"), [
    ("scaling", ["none", "./mine.py"]), ("task", ["some.module:option=1"]),
    ("trust_remote_code", True), ("allow_pickle", True),
])  # fmt: skip
def test_a_record_makes_no_code_run(key, value, run, rerun, tmp_path):
    folder = shutil.copytree(run, tmp_path / "theirs")
    record = json.loads((folder / RUN).read_text())
    record["asked"][key] = value
    (folder / RUN).write_text(json.dumps(record))
    status, _, told = rerun(folder, "--dry-run", "--out", tmp_path / "again")
    assert status == 2
    assert "names code to run" in told
    assert "--run-code" in told


def test_nothing_in_a_record_is_run_or_contacted(run, rerun, tmp_path):
    own = tmp_path / "evil.py"
    own.write_text("from pathlib import Path\nPath('ran').touch()\ndef begin(*_): ...\n")
    for track in (str(own), "mlflow:uri=http://127.0.0.1:9", 5):
        name = f"{track!r:.3}"
        shutil.copytree(run, tmp_path / name)
        record = json.loads((run / RUN).read_text())
        plain = command(record)
        record["asked"] |= {"track": track, "cluster": "127.0.0.1:9", "workers": 3, "new": [1]}
        write_run(tmp_path / name, record)
        status, told, _ = rerun(tmp_path / name, "--out", tmp_path / f"again {name}")
        assert (status, "3 of 3 samples are equal bit for bit" in told) == (0, True)
        assert command(record) == plain
    assert not Path("ran").exists()


def test_a_model_of_the_hub_is_that_of_the_recorded_commit():
    record = {"asked": {"model": "a/b", "revision": "main"}, "model": {"revision": "c0ffee"}}
    assert recorded_settings(record, {}) == {"model": "a/b", "revision": "c0ffee"}
    assert recorded_settings({**record, "model": {"revision": None}}, {})["revision"] == "main"
    assert recorded_settings(record, {"model": "here"}) == {"model": "here", "revision": None}
