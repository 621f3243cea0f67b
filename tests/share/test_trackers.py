"""What trackers are sent, and that none of them costs a sample."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from harness.plugins import load
from harness.runs.frame import make_frame
from harness.runs.store import read_run
from harness.share.trackers import written_at
from harness.share.trackers._follow import Follower, follow, scores, settings
from tests import ROOT
from tests.command_line import samples, sweep
from tests.frames import sweep as made_up
from tests.small_runs import changed

CALLS = """
import json
from pathlib import Path

HERE = Path(__file__).parent


def note(what, *values):
    with (HERE / "calls.jsonl").open("a") as file:
        file.write(json.dumps([what, *values]) + "\\n")
    if (HERE / what).exists():
        raise ConnectionError("the server is gone")


class Run:
    place = "nowhere"

    def __init__(self, number):
        self.id = number

    def scores(self, length, values):
        note("scores", length, values)

    def files(self, folder):
        note("files", sorted(path.name for path in folder.rglob("*.*")))

    def end(self, *, finished):
        note("end", finished)


def begin(name, settings, known):
    note("begin", name, settings, known)
    return Run(known or "first")
"""
RAISING = "def begin(*_):\n    raise ConnectionError('no network')\n"


LIBRARY = """
import json, sys
from pathlib import Path
from harness.plugins import load

begin = load("tracker", sys.argv[1]).module.begin
settings = {"model name": "toy", "method yarn:factor=4": "factor=4.0", "command": "first"}
first = begin("run", settings, None)
first.scores(256, {"passkey/yarn:factor=4": 0.5, "passkey low/yarn:factor=4": 0.25})
first.files(Path(sys.argv[2]))
first.end(finished=True)
again = begin("run", {**settings, "command": "second", "lengths": "256, 512"}, first.id)
again.scores(512, {"passkey/yarn:factor=4": 0.75})
again.end(finished=False)
lost = begin("run", settings, 32 * "0")
lost.end(finished=False)
Path(sys.argv[3]).write_text(json.dumps([first.id, again.id, lost.id]))
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """Return a tracker that notes its calls, and raises in those whose name is a file beside it."""
    file = tmp_path / "tracker" / "fake.py"
    file.parent.mkdir()
    file.write_text(CALLS)
    return file


def calls(fake: Path) -> list[list[Any]]:
    file = fake.parent / "calls.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    return found


def sent(
    run: Path, tracker: object, word: str = "finished\n", written: int = 0
) -> tuple[bool, list[str]]:
    """Send a run as the process beside a measurement does; return what it said, too."""
    told: list[str] = []
    reader, writer = os.pipe()
    with os.fdopen(reader) as words:
        os.write(writer, word.encode())
        os.close(writer)
        beside = Follower(run, load("tracker", str(tracker)), (), told.append)
        return follow(beside, written, words), told


# What is sent.


def test_scores_are_steps_and_ends_are_metrics():
    """One metric per task and method, with the length as its step; incomplete cells wait."""
    found = scores(made_up(scalings=("none", "pi", "mine"), lengths=(256, 2048)))
    assert sorted(found) == [256, 2048]
    task = "passkey:trials=4"
    assert {f"{task}/pi", f"{task} low/pi", f"{task} high/pi"} <= found[2048].keys()
    assert "perplexity:protocol=tail/none" in found[2048]
    assert "perplexity:protocol=tail/mine" not in found[2048]
    partly = made_up(scalings=("none",), lengths=(256,))
    partly.loc[0, "status"] = "not_measured"
    assert list(scores(partly)[256]) == [f"{task}/none", f"{task} low/none", f"{task} high/none"]
    names = {"pi": "longrope:factors=/a/x.json", "ntk": "longrope:factors=/b/x.json"}
    frame = made_up(scalings=("pi", "ntk"))
    with pytest.raises(ValueError, match="two without the folders"):
        scores(frame.assign(scaling=frame["scaling"].replace(names)))


def test_settings_are_those_of_the_record_without_places(small, tmp_path):

    def private(record: dict[str, Any]) -> None:
        record["asked"] |= {"docs": "/home/jane/my books", "cluster": "10.0.0.7:6379"}
        record["documents"]["given"] = "/home/jane/my books"
        machines = record["sessions"][0]
        machines["workers"] = [{**machines, "host": "node17"}]

    record = read_run(changed(small, tmp_path / "run", private))
    told = settings(record)
    assert told["model name"] == "llama"
    assert (told["methods"], told["lengths"]) == ("pi", "128")
    assert told["task perplexity:tail=16"].startswith("version=")
    assert "torch" in told["machine"]
    assert "--docs 'my books'" in told["command"]
    assert not any(word in str(told) for word in ("jane", "node17", "10.0.0.7"))


@pytest.mark.slow
@pytest.mark.usefixtures("scored")
def test_a_run_is_sent_once_and_continued(small, tmp_path, fake):
    run = Path(shutil.copytree(small, tmp_path / "run"))
    whole, told = sent(run, fake)
    assert (whole, told) == (True, ["fake: a new run: nowhere"])
    begun, scored, files, ended = calls(fake)
    assert begun[:2] == ["begin", "run"]
    assert begun[2]["methods"] == "pi"
    assert begun[3] is None
    score = make_frame([run])["score"].iloc[0]
    assert (scored[1], scored[2]["perplexity:tail=16/pi"]) == (128, score)
    assert {"index.html", "scores.csv"} <= set(files[1])
    assert ended == ["end", True]
    _, told = sent(run, fake)
    assert [(call[0], call[-1]) for call in calls(fake)][::2] == [("begin", "first"), ("end", True)]
    assert told == ["fake: continues the run: nowhere"]


def test_what_was_not_sent_is_sent_later(small, tmp_path, fake):
    run = Path(shutil.copytree(small, tmp_path / "run"))
    (fake.parent / "scores").touch()
    whole, told = sent(run, fake)
    assert (whole, len(told)) == (False, 2)
    assert "the server is gone" in told[1]
    assert f"ropewalk publish {run} --to {fake}" in told[1]
    (fake.parent / "scores").unlink()
    calls(fake)
    assert sent(run, fake) == (True, ["fake: continues the run: nowhere"])
    assert [call[0] for call in calls(fake)] == ["begin", "scores", "files", "end"]


def test_a_killed_measurement_is_a_stopped_run(small, tmp_path, fake):
    run = Path(shutil.copytree(small, tmp_path / "run"))
    assert sent(run, fake, "")[0]
    assert [call[0] for call in calls(fake)] == ["begin", "scores", "end"]


def test_a_refused_run_sends_nothing_of_what_its_folder_had(small, tmp_path, fake):
    run = Path(shutil.copytree(small, tmp_path / "run"))
    assert sent(run, fake, "stopped\n", written_at(run)) == (True, [])
    assert not (fake.parent / "calls.jsonl").exists()


# On the command line.


@pytest.mark.slow
@pytest.mark.usefixtures("scored")
def test_a_tracker_that_raises_costs_no_sample(tiny, docs, tmp_path, ropewalk):
    """Every sample, the reports and exit status 0, beside one line of warning."""
    (tmp_path / "raising.py").write_text(RAISING)
    words = sweep(tiny, docs, tmp_path / "run", scaling=["pi"], task=["perplexity:tail=16"])
    done = ropewalk(*words, "--track", tmp_path / "raising.py")
    assert done.status == 0
    assert len(samples(tmp_path / "run")) == 6
    assert (tmp_path / "run/reports/scores.csv").exists()
    [told] = [line for line in done.err.splitlines() if "no network" in line]
    assert "Nothing measured is lost" in told
    assert "track" not in read_run(tmp_path / "run")["asked"]


@pytest.mark.slow
def test_a_finished_run_is_sent_by_publish(run, fake, ropewalk, tmp_path, monkeypatch):
    (tmp_path / "shlex.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    done = ropewalk("publish", run, "--to", fake)
    assert (done.status, "a new run" in done.err) == (0, True)
    assert [call[0] for call in calls(fake)] == ["begin", "scores", "files", "end"]


def test_what_was_not_sent_is_an_exit_status(small, fake, ropewalk):
    (fake.parent / "begin").touch()
    done = ropewalk("publish", small, "--to", fake)
    assert (done.status, "the server is gone" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("given", "word"),
    [("mlfow", "did you mean 'mlflow'"), ("wandb:projet=x", "project"), ("absent.py", "exist")],
)
def test_a_wrong_tracker_is_one_sentence(rejected, given, word):
    assert word in rejected("run", "--model", "absent", "--track", given)


# The libraries, each without a network, in a process of its own as for a user.


def by_library(name: str, tmp_path: Path, **environment: str) -> list[str]:
    """Send two scores and a file, continue the run, and name a run that is not there."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed (pip install 'ropewalk[{name}]')")
    made = tmp_path / "made" / "reports"
    made.mkdir(parents=True)
    (made.parent / "index.html").write_text("<p>page</p>")
    shutil.copy(ROOT / "results/reference/reports/agreement.png", made / "curves.png")
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY, name, str(made.parent), str(tmp_path / "ids")],
        cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, again, lost = json.loads((tmp_path / "ids").read_text())
    assert again == first
    return [first, lost]


def test_mlflow_has_params_steps_and_artefacts(tmp_path):
    """A run whose settings changed, which MLflow forbids, has them as tags; a lost one is new."""
    store = tmp_path / "store"
    first, lost = by_library(
        "mlflow", tmp_path, MLFLOW_TRACKING_URI=store.as_uri(), MLFLOW_ALLOW_FILE_STORE="true",
        MLFLOW_DISABLE_TELEMETRY="true",
    )  # fmt: skip
    assert lost not in (first, 32 * "0")
    [run] = store.glob(f"*/{first}")
    lines = (run / "metrics/passkey/yarn:factor 4").read_text().splitlines()
    assert [line.split()[1:] for line in lines] == [["0.5", "256"], ["0.75", "512"]]
    assert (run / "metrics/passkey low/yarn:factor 4").exists()
    assert (run / "params/method yarn:factor 4").read_text() == "factor=4.0"
    assert (run / "params/lengths").read_text() == "256, 512"
    assert [(run / kind / "command").read_text() for kind in ("params", "tags")] == [
        "first", "second",
    ]  # fmt: skip
    assert (run / "artifacts/index.html").exists()
    assert (run / "artifacts/reports/curves.png").exists()


def test_trackio_has_config_steps_and_artefacts(tmp_path):
    first, lost = by_library("trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "store"))
    assert lost != first
    with closing(sqlite3.connect(tmp_path / "store/ropewalk.db")) as base:
        rows = base.execute(
            "select step, metrics from metrics where run_name = ? order by id", [first]
        ).fetchall()
        configs = base.execute("select config from configs").fetchall()
        [[manifest]] = base.execute("select manifest from artifact_versions").fetchall()
    scored = [(step, json.loads(text)) for step, text in rows if b"figures" not in bytes(text)]
    assert scored[0] == (256, {"passkey/yarn:factor=4": 0.5, "passkey low/yarn:factor=4": 0.25})
    assert scored[1] == (512, {"passkey/yarn:factor=4": 0.75})
    assert json.loads(configs[0][0])["command"] == "second"
    assert {one["path"] for one in json.loads(manifest)} == {"index.html", "reports/curves.png"}


def test_wandb_offline_has_config_steps_and_artefacts(tmp_path):
    """Two offline parts of one run, which ``wandb sync`` joins; no name of the machine."""
    first, _ = by_library("wandb", tmp_path, WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    parts = sorted(tmp_path.glob(f"wandb/offline-run-*/run-{first}.wandb"))
    assert len(parts) == 2
    whole = b"".join(part.read_bytes() for part in parts)
    for word in ("passkey/yarn:factor=4", "passkey low/yarn:factor=4", "method yarn:factor=4",
                 "second", "index.html", "reports/curves.png"):  # fmt: skip
        assert word.encode() in whole, word
    assert f'{gethostname()}"'.encode() not in whole
