"""Make one tidy data frame of run folders: one row per sample, with its cell's score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.names import printable, resolved
from ropewalk.harness.plugins import Plugin, call, load, names
from ropewalk.harness.runs.compatible import reasons
from ropewalk.harness.runs.record import are_of, wrong_facts
from ropewalk.harness.runs.store import checked_run, each_checked
from ropewalk.tasks.types import Sample, Score

SAMPLE = ("unit", "status", "reason", "value", "weight", "seconds", "peak_mib")


class Kept(NamedTuple):
    """A sample without what its cell says: the columns of ``SAMPLE``, then its facts by name."""

    unit: Any
    status: str
    reason: str | None
    value: Any = None
    weight: Any = None
    seconds: float | None = None
    peak_mib: float | None = None
    names: tuple[str, ...] = ()
    facts: tuple[Any, ...] = ()

    @property
    def metadata(self) -> dict[str, Any]:
        """The facts by their names."""
        return dict(zip(self.names, self.facts, strict=True))


Rows = tuple[Mapping[str, Any], Mapping[str, Kept]]  # of a cell: what all share, each question's


def kept_samples(folder: Path) -> dict[str, dict[str, Kept]]:
    """Return the samples of a run by cell key and question; raise UserError for a damaged one.

    Equal texts are one in memory: units, questions and most facts occur once a method.
    """
    cells: dict[str, dict[str, Kept]] = {}
    one: dict[Any, Any] = {}
    same = one.setdefault
    for record in each_checked(folder):
        names, values = tuple(record["facts"]), record["facts"].values()
        facts = tuple([same(fact, fact) if type(fact) is str else fact for fact in values])
        unit, status, reason, *numbers = map(record.get, SAMPLE)
        texts = same(unit, unit), same(status, status), same(reason, reason)
        sample = Kept._make((*texts, *numbers, same(names, names), facts))
        cell, question = record["cell"], record["question"]
        cells.setdefault(cell, {})[same(question, question)] = sample
    return cells


def columns_of(parts: Sequence[Rows]) -> pd.DataFrame:
    """Return a frame of all rows; what a row does not have is NaN.

    A fact never replaces a column of ours. Columns are built one by one: a dictionary per row
    would take many times as much memory.
    """
    parts = [part for part in parts if part[1]]
    counts = [len(samples) for _, samples in parts]
    columns = {
        name: _inferred([head[name] for head, _ in parts]).repeat(counts).reset_index(drop=True)
        for name in (parts[0][0] if parts else ())
    }
    columns["question"] = _inferred([question for _, samples in parts for question in samples])
    samples = [sample for _, samples in parts for sample in samples.values()]
    columns.update(zip(SAMPLE, map(_inferred, zip(*samples, strict=True)), strict=False))
    alike = [(kind, list(some)) for kind, some in groupby(samples, attrgetter("names"))]
    order = dict.fromkeys(name for kind, _ in alike for name in (*kind, *columns))
    facts = {name: _fact(name, alike) for name in order if name not in columns}
    return pd.DataFrame({name: {**columns, **facts}[name] for name in order})


def _fact(name: str, alike: Sequence[tuple[tuple[str, ...], list[Kept]]]) -> pd.Series[Any]:
    """Return the column of a fact; NaN where samples have none of the name."""
    column: list[Any] = []
    for kind, samples in alike:
        if name in kind:
            place = kind.index(name)
            column += [sample.facts[place] for sample in samples]
        else:
            column += [math.nan] * len(samples)
    return _inferred(column)


def _inferred(column: Sequence[Any]) -> pd.Series[Any]:
    """Return a column of the type that its values have."""
    values = np.fromiter(column, object, len(column))  # a list in it is one value
    return pd.Series(values).infer_objects()


FAILED, NOT_MEASURED = "failed", "not_measured"
NUMBERS = ("score", "low", "high", "value", "weight", "seconds", "peak_mib")
NEEDS_CODE = {"bands", "layers"}  # what a record has of a rotation that no server's config says
Key = tuple[str, str, str, int]  # model, task, scaling, length


@dataclass(frozen=True)
class Cell:
    """A cell of all runs together: every question, and the records of samples.

    ``failed`` is the reason why its method has nothing to measure.
    """

    run: str
    key: str
    failed: str | None
    facts: Mapping[str, Any]
    task: Any
    records: dict[str, Kept | None]


def make_frame(
    folders: Iterable[Path], tasks: Iterable[str] = (), *, mixed: bool = False
) -> pd.DataFrame:
    """Read runs from their files alone and join them.

    One row per question with the columns of ``results/README.md``; one that was not measured is
    a row of status not_measured. Cells that share their frequencies share their samples. A run
    measured with a user's task needs that task among ``tasks``: no record makes code run. Raises
    UserError where runs are not comparable: another model, other documents or other settings
    under one name. ``mixed`` joins even those: each run is then a model of its own, named
    with its folder, so that no curve and no difference mixes two of them.
    """
    cells: dict[Key, Cell] = {}
    runs = {folder: checked_run(folder) for folder in folders}
    conflicts = reasons(runs)
    if conflicts and not mixed:
        raise UserError(f"{conflicts[0]}; report them separately, or with --mixed.")
    own = own_tasks(tasks)
    for folder, run in runs.items():
        name = called(folder, runs)
        for place, cell in _cells(folder, name, run, own):
            if conflicts and place[0] != name:  # a sweep of several models is named so
                place = (f"{place[0]} ({name})", *place[1:])
            known = cells.setdefault(place, cell)
            if known.key != cell.key or known.records.keys() != cell.records.keys():
                named = ", ".join(map(str, place))
                raise UserError(
                    f"{known.run} and {cell.run} measured {named} with other settings or on other "
                    "documents; report them separately."
                )
            known.records.update(
                (question, record)
                for question, record in cell.records.items()
                if record and not _is_ok(known.records[question])
            )
    if not any(cell.records for cell in cells.values()):
        raise UserError(f"{', '.join(map(str, runs))}: the record has no questions.")
    _check_same_units(cells)
    frame = columns_of([_rows(place, cell) for place, cell in cells.items()])
    # A column of None alone, such as intervals of one document, would have dtype object.
    return frame.astype(dict.fromkeys(NUMBERS, float))


def _is_ok(sample: Kept | None) -> bool:
    return sample is not None and sample.status == "ok"


def own_tasks(tasks: Iterable[str]) -> list[Plugin]:
    """Return those of the named tasks that are a user's."""
    return [task for task in (load("task", given) for given in tasks) if task.digest is not None]


def called(folder: Path, folders: Iterable[Path]) -> str:
    """Return a folder's name, with those of its parents that tell it from another of its name."""
    place = resolved(folder)
    others = [other.parts for other in map(resolved, folders) if other != place]
    most = len(place.parts)
    short = (n for n in range(1, most) if all(one[-n:] != place.parts[-n:] for one in others))
    return printable(str(Path(*place.parts[-next(short, most) :])))


def _check_same_units(cells: Mapping[Key, Cell]) -> None:
    """Raise UserError where runs together measure a task on more documents at one length.

    Also where a document has more windows of the same targets (``window``) at one length.
    Overlapping windows read all documents at any length, and their units depend on it.
    """
    known: dict[tuple[str, str], tuple[int, Cell, set[tuple[str, str]]]] = {}
    if len({cell.run for cell in cells.values()}) < 2:
        return
    for (model, task, _, length), cell in cells.items():
        records = [record for record in cell.records.values() if record is not None]
        if len(records) < len(cell.records):
            continue  # partly measured, and shown so
        if any(record.metadata.get("protocol") == "overlapping" for record in records):
            continue
        units = {(str(r.unit), str(r.metadata.get("window", 0))) for r in records}
        first, other, before = known.setdefault((model, task), (length, cell, units))
        if units != before and cell.run != other.run:
            raise UserError(
                f"{model}, {task}: {len(before)} samples at {first} tokens and {len(units)} at "
                f"{length} are not the same documents or windows; measure both lengths in one"
                " sweep."
            )


def _cells(
    folder: Path, name: str, run: Mapping[str, Any], own: Sequence[Plugin]
) -> Iterable[tuple[Key, Cell]]:
    samples = kept_samples(folder)
    tasks = {label: task_of(folder, task, own) for label, task in run["tasks"].items()}
    for cell in run["cells"]:
        task = run["tasks"][cell["task"]]
        wanted = dict.fromkeys(task["questions"][str(cell["length"])])
        facts = {
            "trained_length": run["model"]["trained_length"],
            "frequencies": cell["frequencies"],
            "needs_code": not NEEDS_CODE.isdisjoint(
                run["frequencies"].get(cell["frequencies"], ())
            ),
            "metric": task["metric"],
            "asked": len(wanted),
        }
        kinds = getattr(tasks[cell["task"]].module, "FACTS", {})
        own_samples = samples.get(cell["key"], {})
        records = {question: own_samples.get(question) for question in wanted}
        if not _are_sound(filter(None, records.values()), kinds):
            records = {key: one and _sound(one, kinds) for key, one in records.items()}
        place = (run["model"]["name"], cell["task"], cell["scaling"], cell["length"])
        failed = cell.get("failed")
        yield place, Cell(name, cell["key"], failed, facts, tasks[cell["task"]], records)


def _are_sound(samples: Iterable[Kept], kinds: Mapping[str, type]) -> bool:
    """Return whether no sample has a fact of another kind than its task has it of."""
    for kind, alike in groupby(samples, attrgetter("names")):
        columns = zip(kind, zip(*(sample.facts for sample in alike), strict=True), strict=False)
        if not all(are_of(kinds[name], column) for name, column in columns if name in kinds):
            return False
    return True


def _sound(sample: Kept, kinds: Mapping[str, type]) -> Kept:
    """Return a sample, with the status failed if a fact is not of the kind that its task gives."""
    wrong = wrong_facts(zip(sample.names, sample.facts, strict=True), kinds)
    if sample.status != "ok" or not wrong:
        return sample
    facts = {name: fact for name, fact in sample.metadata.items() if name not in wrong}
    value = reason(repr(sample.metadata[wrong[0]]))
    text = f"the record is damaged: the fact {wrong[0]} is {value}"
    failed = sample._replace(status=FAILED, reason=text, value=None)
    return failed._replace(names=tuple(facts), facts=tuple(facts.values()))


def _rows(place: Key, cell: Cell) -> Rows:
    records = [one for one in cell.records.values() if one and _is_ok(one)]
    good = [Sample(one.unit, one.value, one.weight, one.metadata) for one in records]
    score, unscored = score_of(cell.task, good)
    head = {
        "run": cell.run,
        **dict(zip(("model", "task", "scaling", "length"), place, strict=True)),
        **cell.facts,
        **score,
    }
    missing = Kept(None, FAILED if cell.failed else NOT_MEASURED, cell.failed)
    samples = {question: sample or missing for question, sample in cell.records.items()}
    if unscored:
        samples = {
            question: sample._replace(**unscored) if sample.status == "ok" else sample
            for question, sample in samples.items()
        }
    return head, samples


def task_of(folder: Path, record: Mapping[str, Any], own: Sequence[Plugin]) -> Plugin:
    """Return the task that a run was measured with: the same version, the same file.

    A record may come from anyone, so the code it names is not executed: only built-in tasks are
    loaded by name, and a user's must be among ``own``, by the hash of its file.
    """
    given = str(record["given"])
    built_in = record["file"] is None and given.partition(":")[0] in names("task")
    known = {task.digest: task for task in own}
    if not built_in and record["file"] not in known:
        raise UserError(
            f"{folder} was measured with the task {given}, whose code runs only when named: "
            f"add --task {given.partition(':')[0]}, the same file as then."
        )
    task = load("task", given) if built_in else known[record["file"]]
    if record["version"] != task.module.VERSION:
        raise UserError(
            f"{folder} was measured with another version of {given}; "
            "run the sweep again or bring that version back."
        )
    return task


def score_of(task: Plugin, samples: list[Sample]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the score of a cell's good samples; where the task raises, the status they get."""
    none = {"score": None, "low": None, "high": None, "n": 0}
    if not samples:
        return none, {}
    try:
        score: Score = call(f"task {task.label}", lambda: _checked(task.module.score(samples)))
    except UserError as error:
        return none, {"status": FAILED, "reason": str(error)}
    return {"score": score.value, "low": score.low, "high": score.high, "n": score.n}, {}


def _checked(score: Any) -> Score:
    """Return a score; raise ValueError for another type, or a value that is not a number."""
    if not isinstance(score, Score):
        raise ValueError(
            f"it scored with {type(score).__name__}, not Score"
        )  # shown as one sentence, as every error of a task
    ends = [end for end in (score.low, score.high) if end is not None]
    if not all(math.isfinite(number) for number in (score.value, *ends)):
        raise ValueError(f"its score is {score.value} [{score.low}, {score.high}]")
    return score
