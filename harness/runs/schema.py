"""Validate the fields of a record, which may be damaged or come from anyone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from harness.errors import UserError
from harness.names import printable
from harness.runs.fields import LONGEST, MOST, Count, Facts, Given, Name, Text, is_fact
from harness.runs.record import Run
from harness.runs.store import RUN, SAMPLES, each_sample, read_run
from tasks._tokens import kept
from tasks.types import Request

Key = tuple[str, str]  # a cell's key and a question's digest
Outcome = Mapping[str, Any]  # of a sample: status and reason
OK: Outcome = {"status": "ok"}


class _Question(BaseModel):
    unit: Name
    facts: Given


class _Graded(BaseModel):
    value: Annotated[FiniteFloat, Field(strict=True)]
    weight: Annotated[int, Field(strict=True, gt=0, lt=MOST)]
    facts: Given


class _Sample(BaseModel):
    cell: Name
    question: Name
    task: Name
    status: Name
    reason: Text | None = None
    unit: Name
    value: Annotated[FiniteFloat, Field(strict=True)] | None
    weight: Count
    facts: Facts
    seconds: FiniteFloat | None = None
    peak_mib: FiniteFloat | None = None
    shared: bool | None = None


def checked_run(folder: Path) -> dict[str, Any]:
    """Return the record of a run; raise UserError where it is damaged."""
    record = read_run(folder)
    check_run(str(folder / RUN), record)
    return record


def checked_samples(folder: Path) -> dict[Key, dict[str, Any]]:
    """Return the samples of a run as ``read_samples`` does; raise UserError for a damaged one."""
    return {(record["cell"], record["question"]): record for record in each_checked(folder)}


def each_checked(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the samples of a run as ``each_sample`` does; raise UserError for a damaged one."""
    place = str(folder / SAMPLES)
    for record in each_sample(folder):
        check_sample(f"{place}: sample {record['question']}", record)
        yield record


def outcomes(folder: Path) -> dict[Key, Outcome]:
    """Return of every sample of a run what became of it, without its numbers."""
    return {
        (record["cell"], record["question"]): outcome(record) for record in each_checked(folder)
    }


def outcome(record: Mapping[str, Any]) -> Outcome:
    """Return what became of a sample: its status, and the reason of one without a number."""
    if record["status"] == "ok":
        return OK
    return {"status": record["status"], "reason": record.get("reason")}


def check_question(question: Any) -> None:
    """Raise ValueError for a question that no record can store."""
    if not isinstance(question, Request):
        raise ValueError(f"it yields {type(question).__name__}, not Request")
    _hold(_Question, {"unit": question.doc_id, "facts": question.metadata}, "of a question ")
    least = int(kept(question.tokens).numbers().min())
    if least < 0:
        raise ValueError(f"{question.doc_id}: token {least} is not in a vocabulary")
    question.digest  # noqa: B018  # raises for a token that is not a whole number


def check_graded(outcome: Mapping[str, Any]) -> None:
    """Raise ValueError for a value, a weight or facts that no record can store."""
    _hold(_Graded, outcome, "of a sample ")


def check_run(where: str, record: Any) -> None:
    """Raise UserError naming the first field of ``run.json`` that is missing or wrong."""
    _check(where, Run, record)
    for cell in record["cells"]:
        task: Mapping[str, Any] = record["tasks"].get(cell["task"], {})
        if str(cell["length"]) not in task.get("questions", {}):
            raise UserError(
                f"{where} is damaged: no questions of {cell['task']} at {cell['length']} tokens."
            )


def check_sample(where: str, record: Any) -> None:
    """Raise UserError naming the first field of a sample that is missing or wrong."""
    if is_ordinary(record):
        return
    _check(where, _Sample, record)
    if record["status"] == "ok" and (record["value"] is None or not record["weight"]):
        raise UserError(f"{where} is damaged: a sample of status ok has no value.")


def is_ordinary(record: Mapping[str, Any]) -> bool:
    """Return whether a sample is surely sound, as nearly all are: five times as fast as _Sample."""
    facts: Any = record.get("facts")
    if type(facts) is not dict or record.get("status") != "ok" or record.get("reason") is not None:
        return False
    try:
        named = "".join([*map(record.__getitem__, NAMES), *facts])
        value, seconds, peak = map(record.__getitem__, NUMBERS)
        for fact in facts.values():
            kind = type(fact)  # no file of JSON holds half a letter
            if kind is not str and not (kind is float and math.isfinite(fact)):
                is_fact(fact)
    except (KeyError, TypeError, ValueError):
        return False
    weight, shared = record.get("weight"), record.get("shared")
    return (
        named.isprintable()
        and len(named) <= LONGEST
        and type(value) is type(seconds) is type(peak) is float
        and math.isfinite(value + seconds + peak)
        and type(weight) is int
        and 0 < weight < MOST
        and (shared is None or type(shared) is bool)
    )


NAMES, NUMBERS = ("cell", "question", "task", "status", "unit"), ("value", "seconds", "peak_mib")


def _check(where: str, kind: type[BaseModel], record: Any) -> None:
    try:
        _hold(kind, record)
    except ValueError as error:
        raise UserError(f"{where} is damaged: {error}.") from None


def _hold(kind: type[BaseModel], record: Any, what: str = "") -> None:
    try:
        kind.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        why = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{what}{printable(place)[:80]}: {why}") from None
