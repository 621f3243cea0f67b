"""From run folders to one tidy frame: a row a sample, its cell's score beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.plugins import load
from harness.store import read_run, read_samples
from tasks._types import Sample, Score

NOT_MEASURED = "not_measured"
SAMPLE = ("unit", "status", "value", "weight", "seconds", "peak_mib")
NUMBERS = ("score", "low", "high", "value", "weight", "seconds", "peak_mib")


def make_frame(folders: Iterable[Path]) -> pd.DataFrame:
    """Read runs from their files alone and join them.

    One row per sample with the columns of ``results/README.md``; a cell without any sample is one
    row of status not_measured. Cells that share their frequencies share their samples.
    """
    frame = pd.DataFrame([row for folder in folders for row in _rows(folder)])
    # A column of nothing but None, as the intervals of one document, would be objects.
    return frame.astype(dict.fromkeys(NUMBERS, float))


def _rows(folder: Path) -> Iterable[dict[str, Any]]:
    run, samples = read_run(folder), read_samples(folder)
    tasks = {label: _task(folder, task) for label, task in run["tasks"].items()}
    for cell in run["cells"]:
        task = run["tasks"][cell["task"]]
        wanted = task["questions"][str(cell["length"])]
        records = [samples[cell["key"], q] for q in wanted if (cell["key"], q) in samples]
        good = [record for record in records if record["status"] == "ok"]
        score = _score(tasks[cell["task"]], good)
        head = {
            "run": folder.resolve().name,
            "model": run["model"]["name"],
            "trained_length": run["model"]["trained_length"],
            "scaling": cell["scaling"],
            "frequencies": cell["frequencies"],
            "task": cell["task"],
            "metric": task["metric"],
            "length": cell["length"],
            "asked": len(wanted),
            **score,
        }
        for record in records or [{"status": NOT_MEASURED, "facts": {}}]:
            # Facts first: a task's fact must not stand in the place of a column of ours.
            yield {**record["facts"], **head, **{key: record.get(key) for key in SAMPLE}}


def _task(folder: Path, record: Mapping[str, Any]) -> Any:
    """Load the task that a run was measured with; a user's file must be the same one."""
    task = load("task", record["given"])
    if task.digest != record["file"]:
        message = (
            f"{folder} was measured with another version of {record['given']}; "
            "run the sweep again or bring that version back."
        )
        raise UserError(message)
    return task.module


def _score(task: Any, records: list[dict[str, Any]]) -> dict[str, Any]:
    if not records:
        return {"score": None, "low": None, "high": None, "n": 0}
    samples = [Sample(r["unit"], r["value"], r["weight"], r["facts"]) for r in records]
    score: Score = task.score(samples)
    return {"score": score.value, "low": score.low, "high": score.high, "n": score.n}
