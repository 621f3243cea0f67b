"""Make one tidy data frame of run folders: one row per sample, with its cell's score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ropewalk.harness.errors import UserError, printable
from ropewalk.harness.plugins import Plugin, call, load, names
from ropewalk.harness.runs.compatible import reasons
from ropewalk.harness.runs.record import SampleRecord, Task
from ropewalk.harness.runs.store import read_run, read_samples
from ropewalk.tasks.types import Sample, Score

FIRST = ["model", "task", "scaling", "length", "unit", "value"]  # columns
SAMPLE = ("unit", "status", "reason", "value", "weight", "seconds", "peak_mib")
NUMBERS = ("score", "low", "high", "value", "weight", "seconds", "peak_mib")
FAILED, NOT_MEASURED = "failed", "not_measured"
NEEDS_CODE = {"bands", "layers"}  # what a record has of a rotation that no server's config says
Key = tuple[str, str, str, int]  # model, task, scaling, length


@dataclass(frozen=True)
class Cell:
    """A cell of all runs together: the sample of every request, None of one not measured.

    ``failed`` is the reason why its method has nothing to measure.
    """

    run: str
    key: str
    failed: str | None
    task: Plugin
    columns: Mapping[str, Any]
    samples: dict[str, SampleRecord | None]


def make_frame(
    folders: Iterable[Path], tasks: Iterable[str] = (), *, mixed: bool = False
) -> pd.DataFrame:
    """Read runs from their files alone and join them.

    One row per request with the columns of ``results/README.md``; one that was not measured is
    a row of status not_measured. Cells that share their frequencies share their samples. A run
    measured with a user's task needs that task among ``tasks``: no record makes code run. Raises
    UserError where runs are not comparable: another model, other documents or other settings
    under one name. ``mixed`` joins even those: each run is then a model of its own, named
    with its folder, so that no curve and no difference mixes two of them.
    """
    cells: dict[Key, Cell] = {}
    runs = {folder: read_run(folder) for folder in folders}
    conflicts = reasons(runs)
    if conflicts and not mixed:
        raise UserError(f"{conflicts[0]}; report them separately, or with --mixed.")
    user_tasks: dict[str | None, Plugin] = {
        task.digest: task for task in (load("task", name) for name in tasks) if task.digest
    }
    for folder, run in runs.items():
        name, stored = called(folder, runs), read_samples(folder)
        model = run["model"]["name"]
        if conflicts and model != name:  # a sweep of several models is named so
            model = f"{model} ({name})"
        loaded = {label: task_of(folder, task, user_tasks) for label, task in run["tasks"].items()}
        for record in run["cells"]:
            task = run["tasks"][record["task"]]
            questions = dict.fromkeys(task["questions"][str(record["length"])])
            rotation = run["frequencies"].get(record["frequencies"] or "", {})
            cell = Cell(
                run=name,
                key=record["key"],
                failed=record["failed"],
                task=loaded[record["task"]],
                columns={
                    "trained_length": run["model"]["trained_length"],
                    "frequencies": record["frequencies"],
                    "needs_code": not NEEDS_CODE.isdisjoint(rotation),
                    "metric": task["metric"],
                    "asked": len(questions),
                },
                samples={question: stored.get((record["key"], question)) for question in questions},
            )
            place = (model, record["task"], record["scaling"], record["length"])
            first = cells.setdefault(place, cell)
            if first.key != cell.key or first.samples.keys() != cell.samples.keys():
                raise UserError(
                    f"{first.run} and {cell.run} measured {', '.join(map(str, place))} with other "
                    "settings or on other documents; report them separately."
                )
            for question, sample in cell.samples.items():
                before = first.samples[question]
                if sample and not (before and before["status"] == "ok"):
                    first.samples[question] = sample
    _check_same_units(cells)
    rows = [row for place, cell in cells.items() for row in _rows(place, cell)]
    columns = dict.fromkeys([*FIRST, *(name for row in rows for name in row)])
    frame = pd.DataFrame(rows, columns=list(columns))
    # A column of None alone, such as intervals of one document, would have dtype object.
    return frame.astype(dict.fromkeys(NUMBERS, float))


def without_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per sample without a number, but for those that are still to be measured."""
    lost = frame[~frame["status"].isin(["ok", NOT_MEASURED])]
    return lost[["model", "task", "scaling", "length", "unit", "status", "reason"]]


def _rows(place: Key, cell: Cell) -> Iterable[dict[str, Any]]:
    """Yield the rows of a cell; a fact takes the place of no other column."""
    score, unscored = score_of(cell.task, filter(None, cell.samples.values()))
    head = {
        "run": cell.run,
        **dict(zip(("model", "task", "scaling", "length"), place, strict=True)),
        **cell.columns,
        **score,
    }
    missing = {"status": FAILED if cell.failed else NOT_MEASURED, "reason": cell.failed}
    for question, sample in cell.samples.items():
        record: Mapping[str, Any] = sample or missing
        row = {**head, "question": question, **{name: record.get(name) for name in SAMPLE}}
        facts = {name: fact for name, fact in record.get("facts", {}).items() if name not in row}
        yield {**row, **(unscored if row["status"] == "ok" else {}), **facts}


def score_of(
    task: Plugin, samples: Iterable[SampleRecord]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the score of those samples that are ok; if the task raises, the status they get."""
    none = {"score": None, "low": None, "high": None, "n": 0}
    good = [
        Sample(one["unit"], one["value"], one["weight"], one["facts"])
        for one in samples
        if one["value"] is not None
    ]
    if not good:
        return none, {}
    try:
        score: Score = call(f"task {task.label}", lambda: _checked(task.module.score(good)))
    except UserError as error:
        return none, {"status": FAILED, "reason": str(error)}
    return {"score": score.value, "low": score.low, "high": score.high, "n": score.n}, {}


def _checked(score: Any) -> Score:
    if not isinstance(score, Score):
        raise ValueError(f"it scored with {type(score).__name__}, not Score")
    ends = [end for end in (score.low, score.high) if end is not None]
    if not all(math.isfinite(number) for number in (score.value, *ends)):
        raise ValueError(f"its score is {score.value} [{score.low}, {score.high}]")
    return score


def task_of(folder: Path, record: Task, user_tasks: Mapping[str | None, Plugin]) -> Plugin:
    """Return the task that a run was measured with: the same version, the same file.

    A record may come from anyone, so the code it names is not executed: only built-in tasks are
    loaded by name, and a user's must be among ``user_tasks``, by the hash of its file.
    """
    name = record["given"].partition(":")[0]
    built_in = record["file"] is None and name in names("task")
    if not built_in and record["file"] not in user_tasks:
        raise UserError(
            f"{folder} was measured with the task {record['given']}, whose code runs only when "
            f"named: add --task {name}, the same file as then."
        )
    task = load("task", record["given"]) if built_in else user_tasks[record["file"]]
    if record["version"] != task.module.VERSION:
        raise UserError(
            f"{folder} was measured with another version of {record['given']}; "
            "run the sweep again or bring that version back."
        )
    return task


def called(folder: Path, folders: Iterable[Path]) -> str:
    """Return a folder's name, with those of its parents that tell it from another of its name."""
    path = folder.resolve()
    others = [other.parts for other in (one.resolve() for one in folders) if other != path]
    most = len(path.parts)
    short = (n for n in range(1, most) if all(one[-n:] != path.parts[-n:] for one in others))
    return printable(str(Path(*path.parts[-next(short, most) :])))


def _check_same_units(cells: Mapping[Key, Cell]) -> None:
    """Raise UserError where runs together measure a task on more documents at one length.

    Also where a document has more windows of the same targets (``window``) at one length.
    Overlapping windows read all documents at any length, and their units depend on it.
    """
    known: dict[tuple[str, str], tuple[int, Cell, set[tuple[str, str]]]] = {}
    for (model, task, _, length), cell in cells.items():
        samples = [sample for sample in cell.samples.values() if sample is not None]
        partly = len(samples) < len(cell.samples)  # and shown so
        if partly or any(sample["facts"].get("protocol") == "overlapping" for sample in samples):
            continue
        units = {(s["unit"], str(s["facts"].get("window", 0))) for s in samples}
        first, other, before = known.setdefault((model, task), (length, cell, units))
        if units != before and cell.run != other.run:
            raise UserError(
                f"{model}, {task}: {len(before)} samples at {first} tokens and {len(units)} at "
                f"{length} are not the same documents or windows; measure both lengths in one"
                " sweep."
            )
