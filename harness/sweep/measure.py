"""Measure the samples of a plan that the run folder lacks, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engine import OutOfMemory
from harness.errors import UserError
from harness.names import printable
from harness.plugins import call
from harness.runs.folders import check_same_question, record_in
from harness.runs.schema import Outcome, check_graded, outcome, outcomes
from harness.runs.store import (
    RUN,
    append,
    check_held,
    measured,
    write_run,
    writing,
)
from harness.sweep.answer import Failed, Reply
from harness.sweep.backend import Backend, ThisProcess
from harness.sweep.cells import Batch, Cell, Item, Key
from harness.sweep.memory import fitted, needed
from harness.sweep.parts import Parts
from harness.sweep.plan import Plan
from harness.sweep.record import describe
from tasks.types import DivergenceResponse, Fact, GroupResponse, Request, Sample

Record = dict[str, Any]
Watch = Callable[[Item, Record], None]
Watching = Callable[[Sequence[Batch]], AbstractContextManager[Watch]]


@dataclass(frozen=True)
class Failure:
    """A sample without a number (without unit: a whole cell), its status, and why in words."""

    cell: Cell
    unit: str | None
    status: str
    reason: str


def measure(
    plan: Plan, folder: Path, watching: Watching, backend: Backend | None = None
) -> list[Failure]:
    """Complete the run folder and return what of the plan has no number, and why.

    ``watching`` is given what is left to measure, and what it yields sees each sample as it ends,
    and each part of one; ``backend`` measures, by default this process. Everything measured
    before is kept and not measured again. Raises UserError when the folder is another model's,
    cannot be written, or another process writes it, and when ``max_memory`` is too little.
    """
    backend = backend or ThisProcess(plan.checkpoint.device)
    records(plan, folder)  # nothing in the folder changes before it is known to be of this run
    with writing(folder) as held:
        known = outcomes(folder)
        done = measured(known)
        work = plan.work(done)
        sizes = fitted(plan, work)
        _, record = records(plan, folder, measuring=bool(work))
        with ExitStack() as stack:
            watch = stack.enter_context(watching(work))  # it shows that the weights load
            answered = backend.answers(plan, work, sizes) if work else iter(())
            session = record["sessions"][-1] if work else {}
            session.update(backend.machines if work else {})
            stack.enter_context(_recorded(folder, record))
            for item in [item for item in plan.left(done) if item.question.too_long]:
                sample = _sample(item, _too_long(item.question))
                append(held, sample)
                known[item.key] = outcome(sample)
            parts = Parts(plan)
            for item, reply in answered:
                if session != session | backend.machines:  # a worker has joined
                    session.update(backend.machines)
                    write_run(folder, record)
                whole = parts.add(item, reply)
                if whole is None:
                    watch(item, {"status": "ok", "seconds": reply.seconds})
                    continue
                sample = _record(plan, *whole)
                append(held, {**sample, "session": len(record["sessions"]) - 1})
                known[whole[0].key] = outcome(sample)
                watch(item, sample)
            check_held(held)
        return list(_failures(plan, known))


def records(plan: Plan, folder: Path, *, measuring: bool = False) -> tuple[Record | None, Record]:
    """Return the record that a folder has and the one that a run of this plan writes there.

    Raises UserError where the folder has a run of another model, or another sweep.
    """
    before = record_in(folder)
    record = describe(plan, before, measuring=measuring)
    if before:
        check_same_question(folder, before, record)
    return before, record


@contextmanager
def _recorded(folder: Path, record: Record) -> Iterator[None]:
    """Write the record of a run, and again at its end where someone removed it."""
    write_run(folder, record)
    try:
        yield
    finally:
        if folder.is_dir() and not (folder / RUN).exists():
            write_run(folder, record)


def _failures(plan: Plan, samples: dict[Key, Outcome]) -> Iterator[Failure]:
    for cell in plan.cells:
        if cell.failed is not None:
            yield Failure(cell, None, "failed", cell.failed)
            continue
        for question in cell.questions:
            record = samples.get(Item(cell, question).key)  # none of what is not asked yet
            if record is not None and record["status"] != "ok":
                told = record.get("reason") or record["status"]
                yield Failure(cell, question.doc_id, record["status"], told)


def _record(plan: Plan, item: Item, reply: Reply) -> Record:
    return {
        **_sample(item, _graded(plan, item, reply)),
        "seconds": round(reply.seconds, 4),
        "peak_mib": round(reply.peak_mib, 1),
        "shared": reply.shared,
    }


def _sample(item: Item, outcome: Record) -> Record:
    cell, question = item
    return {
        **dict(zip(("cell", "question"), item.key, strict=True)),
        "task": cell.task,
        "length": cell.length,
        "frequencies": cell.frequencies,
        "unit": question.doc_id,
        **outcome,
    }


def _too_long(question: Request) -> Record:
    told = f"it needs {question.length:,} tokens, the cell has {question.cell:,}"
    return _lost(question, "too_long", told, needs=question.length)


def _graded(plan: Plan, item: Item, reply: Reply) -> Record:
    """Grade an answer; what has no number is a status and a reason, never a number."""
    answer, (cell, question) = reply.outcome, item
    if isinstance(answer, Failed):
        return _lost(question, "failed", answer.reason)
    if isinstance(answer, OutOfMemory):
        mib = round(needed(plan, item) / 2**20, 1)
        told = f"about {mib:,.0f} MiB are needed by the estimate, weights included"
        return _lost(question, "out_of_memory", told, estimate_mib=mib)
    responses = answer.parts if isinstance(answer, GroupResponse) else (answer,)
    for part, its in zip(question.model_requests, responses, strict=True):
        if isinstance(its, DivergenceResponse):
            asked, numbers = "divergence", its.values
        else:
            asked, numbers = "loss", its.nll
        if not all(map(math.isfinite, numbers)):
            first = next(i for i, number in enumerate(numbers) if not math.isfinite(number))
            place = part.start + first
            told = f"the {asked} at position {place} is {numbers[first]}"
            return _lost(question, "not_finite", told, position=place)
    task = next(task for task in plan.tasks if task.label == cell.task)
    try:
        source = plan.sources[task.label]
        return call(f"task {task.label}", lambda: _ok(task.module.grade(question, answer, source)))
    except UserError as error:
        return _lost(question, "failed", str(error))


def _lost(question: Request, status: str, reason: str, **facts: Fact) -> Record:
    told = {**question.metadata, **facts}
    return {
        "status": status,
        "value": None,
        "weight": 0,
        "reason": printable(reason),
        "facts": told,
    }


def _ok(sample: Any) -> Record:
    """Return a graded sample as it is recorded; raise ValueError for what no record can hold."""
    if not isinstance(sample, Sample):
        raise ValueError(
            f"it graded with {type(sample).__name__}, not Sample"
        )  # a sentence, as every other of a task's
    outcome = {
        "value": float(sample.value),
        "weight": sample.weight,
        "facts": dict(sample.metadata),
    }
    check_graded(outcome)
    return {"status": "ok", **outcome}
