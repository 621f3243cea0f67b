"""Is a run's record enough to measure it again, and does that give the same numbers?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.hub import go_offline
from harness.names import printable, resolved
from harness.plugins import names_code
from harness.runs.provenance import machines
from harness.runs.record import honoured
from harness.runs.store import checked_run, checked_samples, read_run, read_samples
from harness.sweep.plan import Plan, make_plan
from harness.sweep.record import describe
from harness.sweep.spec import Spec, parse

# What decides a number. Paths are left out: the same bytes may lie elsewhere.
DECIDES = ("model", "lengths", "seed", "methods", "tasks", "documents", "cells", "frequencies")
FREE = {"name", "given"}
SURROUNDINGS = ("device", "threads", "python", "versions", "commit")


@dataclass(frozen=True)
class Outcome:
    """How the samples of a run and those measured again agree.

    ``largest`` is the largest relative difference of two values; ``differing`` are the units whose
    status differs or that one of the two does not have.
    """

    samples: int
    equal: int
    largest: float
    where: str
    differing: tuple[str, ...]


def plan_again(folder: Path, out: Path, places: Mapping[str, str], *, code: bool = False) -> Plan:
    """Plan what a run's record describes, and check the plan against the record.

    ``places`` say where model and documents lie now. A record may come from anyone: what would run
    code that it names needs ``code``. Only what the run has samples of is measured again: a race
    leaves most of its plan unmeasured. Raises UserError where the record and what would be measured
    differ in anything that decides a number, naming the first such thing.
    """
    record = checked_run(folder)
    samples = checked_samples(folder)  # a damaged one is rejected before anything is measured
    spec = parse(None, {**recorded_settings(record, places), "out": out})
    if not code:
        check_no_code(folder, _named_code(spec))
    if resolved(out) == resolved(folder):
        raise UserError(f"{folder} is the run itself; choose another --out to measure it again.")
    if spec.offline:
        go_offline()
    plan = make_plan(spec)
    now = describe(plan, None, measuring=False)
    for section in DECIDES:
        for place, was, value in differences(record[section], now[section], section):
            raise UserError(
                f"{folder} cannot be measured again as it was: {place} is {value!r}, the record "
                f"has {was!r}."
            )
    return replace(plan, only=samples.keys())


def recorded_settings(record: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a run, with where model and documents lie now.

    A model of the hub is that of the recorded commit: its branch may have moved since.
    """
    settings = honoured(record)
    known = record["model"].get("revision") or settings.get("revision")
    moved = {"docs": _moved(settings.get("docs"), places["docs"])} if "docs" in places else {}
    revision = None if "model" in places else known
    return {**settings, "revision": revision, **places, **moved}


def _moved(docs: Any, now: str) -> Any:
    """Return the documents of a run, which may have some for each task, where they lie now."""
    if not isinstance(docs, Mapping):
        return now
    own = [*dict.fromkeys(one for one in docs.values() if one.partition(":")[0] != "embedded")]
    if len(own) != 1:
        message = (
            f"--docs is one place, and the run has documents in {len(own)} ({', '.join(own)}); put "
            "them where they were."
        )
        if not own:
            message = "the run has embedded documents alone; leave --docs out."
        raise UserError(message)
    return {task: now if given in own else given for task, given in docs.items()}


def _named_code(settings: Spec) -> list[str]:
    """Return what a record names that runs code which is not of the package."""
    named = [
        str(given)
        for kind, entries in (("method", settings.scaling), ("task", settings.task))
        for given in entries
        if names_code(kind, given)
    ]
    return named + [key for key in ("trust_remote_code", "allow_pickle") if getattr(settings, key)]


def check_no_code(folder: Path, named: Sequence[str]) -> None:
    """Raise UserError where a record names code to run."""
    if named:
        raise UserError(
            f"{folder} names code to run ({named[0]}); look at it, and add --run-code to let it."
        )


def differences(was: Any, now: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield each place where a record differs from what is now, less names and paths.

    What the record does not have, as one of an earlier version, is not held against it.
    """
    if isinstance(was, dict) and isinstance(now, dict):
        free = {"docs"} if place.startswith("documents.read.") else FREE if "." not in place else ()
        for key in was:
            if key not in free:
                yield from differences(was[key], now.get(key), f"{place}.{key}")
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from differences(one, other, f"{place}.{index}")
    elif was != now:
        yield place, _short(was), _short(now)


def _short(value: Any) -> Any:
    text = printable(value) if isinstance(value, str) else value
    return f"{len(value)} of them" if isinstance(value, list) else text


def surroundings(folder: Path, other: Path) -> list[str]:
    """Return in words what else differed: versions, device, commit. Numbers may, in last digits."""
    sessions = (read_run(place)["sessions"][-1:] for place in (folder, other))
    was, now = (machines(last[0])[0] if last else {} for last in sessions)  # or its first worker's
    return [
        f"{place.partition('.')[2] or place}: {new} (was {old})"
        for name in SURROUNDINGS
        if was.get(name) is not None and now.get(name) is not None
        for place, old, new in differences(was[name], now[name], name)
    ]


def compare(folder: Path, other: Path) -> Outcome:
    """Compare the samples of both runs, of the questions in the first record."""
    was, now = read_samples(folder), read_samples(other)
    record = read_run(folder)
    requests = [
        (cell["key"], question)
        for cell in record["cells"]
        for question in record["tasks"][cell["task"]]["questions"][str(cell["length"])]
    ]
    both = [key for key in dict.fromkeys(requests) if key in was]
    names = {key: f"{was[key]['task']}, {was[key]['unit']}" for key in both}
    gaps = {key: _gap(was[key], now.get(key)) for key in both}
    known = {key: gap for key, gap in gaps.items() if gap is not None}
    worst = max(known, key=known.__getitem__, default=None)
    return Outcome(
        samples=len(both),
        equal=sum(gap == 0 for gap in known.values()),
        largest=max(known.values(), default=0.0),
        where=names[worst] if worst else "",
        differing=tuple(names[key] for key in both if gaps[key] is None),
    )


def _gap(was: Mapping[str, Any], now: Mapping[str, Any] | None) -> float | None:
    """Return the relative difference of two samples' values; None where one has no value."""
    if now is None or was["status"] != now["status"]:
        return None
    if was["value"] is None:
        return 0.0
    one, other = float(was["value"]), float(now["value"])
    if one == other:
        return 0.0
    return math.fabs(one - other) / max(math.fabs(one), math.fabs(other))
