"""What trackers store equals the scores of the report, and an error of one costs nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from wandb.proto.wandb_internal_pb2 import Record

from ropewalk.harness.reports._trackers import series
from tests.command_line import sweep

Scores = dict[tuple[str, int], float]


@pytest.fixture(scope="module")
def sent(tiny: Path, docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a process that sent a run to two trackers as a user's does."""
    folder = tmp_path_factory.mktemp("tracked")
    words = sweep(tiny, docs, folder / "run", track=["wandb:project=mine", "mlflow"])
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", *words, "--json"], cwd=folder, text=True,
        env=os.environ | {
            "WANDB_MODE": "offline", "WANDB_DIR": str(folder),
            "WANDB_DATA_DIR": str(folder), "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        },
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    notes = json.loads(done.stdout)["notes"]  # and nothing that a tracker prints
    assert not any(note["warning"] for note in notes)
    return folder


def in_wandb(folder: Path) -> Scores:
    """Return what W&B's file of an offline run has, which is in LevelDB's format."""
    [file] = folder.glob("wandb/offline-run-*/run-*.wandb")
    content, at, whole, found, files = file.read_bytes(), 7, b"", {}, set()
    while at + 7 <= len(content):
        if 2**15 - at % 2**15 < 7:  # a block ends
            at += 2**15 - at % 2**15
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole, at = whole + content[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # the whole of a record, or its last part
            record = Record.FromString(whole)
            files |= {entry.path for entry in record.artifact.manifest.contents}
            row = {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in record.history.item
            }
            found |= {(name, row["length"]): row[name] for name in row if "/" in name}
            whole = b""
    assert {"cells.csv", "curves.png"} <= files
    return found


def in_mlflow(folder: Path) -> Scores:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    client = mlflow.MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("ropewalk").experiment_id])
    assert (run.info.run_name, run.data.params["seed"]) == ("run", "0")
    stored = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"cells.csv", "curves.png", "answer.png"} <= stored
    return {
        (name, metric.step): metric.value
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    }


@pytest.mark.slow
@pytest.mark.parametrize("read", [in_wandb, in_mlflow])
@pytest.mark.filterwarnings("default")  # those of MLflow's own imports
def test_a_tracker_stores_the_scores_of_the_report(sent: Path, read: Callable[[Path], Scores]):
    """One series per task and method, with the length as its step."""
    table = pd.read_csv(sent / "run/reports/cells.csv")
    names = [series(f"{row.task}/{row.scaling}") for row in table.itertuples()]
    expected = dict(zip(zip(names, table["length"], strict=True), table["score"], strict=True))
    assert len(expected) == 8
    assert read(sent) == expected


@pytest.mark.parametrize(("given", "sentence"), [
    ("mlfow", "no tracker is called 'mlfow'; did you mean 'mlflow'"),
    ("wandb:projet=x", "no tracker is called 'wandb:projet=x'; did you mean 'wandb'"),
    ("dvclive", "--track dvclive needs: pip install dvclive"),
])  # fmt: skip
def test_a_wrong_tracker_is_one_sentence(rejected, given, sentence):
    assert sentence in rejected("run", "--model", "absent", "--track", given)
