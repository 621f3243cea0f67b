"""From run folders to one tidy frame: a row a sample, its cell's score beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from harness.plugins import load
from harness.store import read_run, read_samples
from tasks._types import Sample, Score

NOT_MEASURED = "not_measured"
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
    tasks = {label: load("task", task["given"]).module for label, task in run["tasks"].items()}
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
            yield {**head, **_sample(record)}


def _sample(record: Mapping[str, Any]) -> dict[str, Any]:
    own = ("unit", "status", "value", "weight", "seconds", "peak_mib")
    return {**record["facts"], **{key: record.get(key) for key in own}}


def _score(task: Any, records: list[dict[str, Any]]) -> dict[str, Any]:
    if not records:
        return {"score": None, "low": None, "high": None, "n": 0}
    samples = [Sample(r["unit"], r["value"], r["weight"], r["facts"]) for r in records]
    score: Score = task.score(samples)
    return {"score": score.value, "low": score.low, "high": score.high, "n": score.n}
