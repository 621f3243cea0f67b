"""Measure the samples of a plan that are not yet in the run folder, and store them."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ropewalk.harness.engine import OutOfMemory
from ropewalk.harness.errors import UserError
from ropewalk.harness.names import printable
from ropewalk.harness.plugins import call
from ropewalk.harness.runs.record import check_graded
from ropewalk.harness.runs.store import (
    Outcome,
    Samples,
    append,
    check_intact,
    check_same_question,
    measured,
    outcome,
    outcomes,
    record_in,
    write_run,
    writing,
)
from ropewalk.harness.sweep.backend import Backend, Failed, Reply
from ropewalk.harness.sweep.memory import fitted, needed
from ropewalk.harness.sweep.plan import Batch, Item, Key, Plan
from ropewalk.harness.sweep.record import describe
from ropewalk.tasks.types import (
    DivergenceResponse,
    Fact,
    Group,
    GroupResponse,
    ModelResponse,
    Request,
    Sample,
)

Record = dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """A sample without a number (without unit: a whole cell), its status, and why in words."""

    task: str
    scaling: str
    length: int
    unit: str | None
    status: str
    reason: str


@dataclass(frozen=True)
class Started:
    """The requests left to measure, before the weights are loaded."""

    work: tuple[Batch, ...]


@dataclass(frozen=True)
class Answered:
    """A reply; ``sample`` is the stored record, None while other parts of the request are open."""

    item: Item
    seconds: float
    sample: Record | None


Event = Started | Answered


class Session:
    """Measures plans of one model into one run folder, whose samples are read once.

    Attributes:
        outcomes: what became of each sample in the folder.
    """

    def __init__(self, folder: Path, backend: Backend) -> None:
        self.folder, self.backend = folder, backend
        self.outcomes: dict[Key, Outcome] = {}
        self.state: object = None  # of the samples file after the last plan

    def measure(self, plan: Plan) -> Generator[Event]:
        """Measure the missing samples of a plan, and yield each once it is on the disk.

        Everything measured before is kept and not measured again. Raises UserError if the folder
        belongs to another model, cannot be written or is written by another process, and if
        ``max_memory`` is too little.
        """
        records(plan, self.folder)  # nothing in the folder changes before it is known to match
        with writing(self.folder) as samples:
            if samples.state != self.state:
                self.outcomes = outcomes(self.folder)
            done = measured(self.outcomes)
            work = plan.work(done)
            sizes = fitted(plan, work)
            _, record = records(plan, self.folder, measuring=bool(work))
            yield Started(work)
            replies = self.backend.answers(plan, work, sizes) if work else iter(())
            session = record["sessions"][-1] if work else {}
            session.update(self.backend.machines if work else {})
            write_run(self.folder, record)
            for item in [item for item in plan.left(done) if item.question.too_long]:
                needs, has = item.question.length, item.question.cell
                text = f"it needs {needs:,} tokens, the cell has {has:,}"
                sample = _sample(item, _lost(item.question, "too_long", text, needs=needs))
                self._store(samples, item, sample)
                yield Answered(item, 0.0, sample)
            parts = Parts(plan)
            for item, reply in replies:
                if session != session | self.backend.machines:  # a worker has joined
                    session.update(self.backend.machines)
                    write_run(self.folder, record)
                whole, stored = parts.add(item, reply), None
                if whole is not None:
                    asked, replied = whole
                    stored = {
                        **_sample(asked, _graded(plan, asked, replied)),
                        "seconds": round(replied.seconds, 4),
                        "peak_mib": round(replied.peak_mib, 1),
                        "shared": replied.shared,
                        "session": len(record["sessions"]) - 1,
                    }
                    self._store(samples, asked, stored)
                yield Answered(item, reply.seconds, stored)
            check_intact(samples)
            self.state = samples.state

    def _store(self, samples: Samples, item: Item, sample: Record) -> None:
        append(samples, sample)
        self.outcomes[item.key] = outcome(sample)

    def failures(self, plan: Plan) -> list[Failure]:
        """Return what has no number, and why."""
        return list(_failures(plan, self.outcomes))


def records(plan: Plan, folder: Path, *, measuring: bool = False) -> tuple[Record | None, Record]:
    """Return the record that a folder has and the one that a run of this plan writes there.

    Raises UserError where the folder has a run of another model, or another sweep.
    """
    before = record_in(folder)
    record = describe(plan, before, measuring=measuring)
    if before:
        check_same_question(folder, before, record)
    return before, record


def _failures(plan: Plan, samples: dict[Key, Outcome]) -> Iterator[Failure]:
    for cell in plan.cells:
        at = cell.task, cell.scaling, cell.length
        if cell.failed is not None:
            yield Failure(*at, None, "failed", cell.failed)
            continue
        for question in cell.questions:
            record = samples.get(Item(cell, question).key)  # none of what is not asked yet
            if record is not None and record["status"] != "ok":
                why = record.get("reason") or record["status"]
                yield Failure(*at, question.doc_id, record["status"], why)


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


def _graded(plan: Plan, item: Item, reply: Reply) -> Record:
    """Grade an answer; what has no number is a status and a reason, never a number."""
    answer, (cell, question) = reply.outcome, item
    if isinstance(answer, Failed):
        return _lost(question, "failed", answer.reason)
    if isinstance(answer, OutOfMemory):
        mib = round(needed(plan, item) / 2**20, 1)
        text = (
            f"the memory of {answer.place} is too small;"
            f" about {mib:,.0f} MiB are needed by the estimate, weights included"
        )
        return _lost(question, "out_of_memory", text, estimate_mib=mib)
    responses = answer.parts if isinstance(answer, GroupResponse) else (answer,)
    for part, its in zip(question.model_requests, responses, strict=True):
        if isinstance(its, DivergenceResponse):
            kind, numbers = "divergence", its.values
        else:
            kind, numbers = "loss", its.nll
        if not all(map(math.isfinite, numbers)):
            first = next(i for i, number in enumerate(numbers) if not math.isfinite(number))
            place = part.start + first
            text = f"the {kind} at position {place} is {numbers[first]}"
            return _lost(question, "not_finite", text, position=place)
    task = next(task for task in plan.tasks if task.label == cell.task)
    try:
        source = plan.sources[task.label]
        return call(f"task {task.label}", lambda: _ok(task.module.grade(question, answer, source)))
    except UserError as error:
        return _lost(question, "failed", str(error))


def _lost(question: Request, status: str, reason: str, **facts: Fact) -> Record:
    told = {"reason": printable(reason), "facts": {**question.metadata, **facts}}
    return {"status": status, "value": None, "weight": 0, **told}


def _ok(sample: Any) -> Record:
    """Return a graded sample as it is recorded; raise ValueError for what no record can hold."""
    if not isinstance(sample, Sample):
        raise ValueError(f"it graded with {type(sample).__name__}, not Sample")
    value, facts = float(sample.value), dict(sample.metadata)
    outcome = {"value": value, "weight": sample.weight, "facts": facts}
    check_graded(outcome)
    return {"status": "ok", **outcome}


class Parts:
    """Holds replies until all parts of their question have one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.replies: dict[Key, dict[Key, Reply]] = {}

    @cached_property
    def whole(self) -> dict[Key, Item]:
        """The question of every part, made when the first reply comes."""
        return {
            Item(cell, part).key: Item(cell, question)
            for cell in self.plan.cells
            for question in cell.questions
            for part in question.model_requests
        }

    def add(self, item: Item, reply: Reply) -> tuple[Item, Reply] | None:
        """Return the whole question with its reply; None while a part is missing."""
        whole = self.whole[item.key]
        if not isinstance(whole.question, Group):
            return item, reply
        parts = self.replies.setdefault(whole.key, {})
        parts[item.key] = reply
        if len(parts) < len(whole.question.parts):
            return None
        del self.replies[whole.key]
        keys = [Item(whole.cell, part).key for part in whole.question.model_requests]
        return whole, _joined([parts[key] for key in keys])


def _joined(replies: Sequence[Reply]) -> Reply:
    """Return one reply of many: the first failure, or all answers."""
    outcomes = [reply.outcome for reply in replies]
    failed = [outcome for outcome in outcomes if not isinstance(outcome, ModelResponse)]
    answers = tuple(outcome for outcome in outcomes if isinstance(outcome, ModelResponse))
    return Reply(
        failed[0] if failed else GroupResponse(answers),
        sum(reply.seconds for reply in replies),
        max(reply.peak_mib for reply in replies),
        all(reply.shared for reply in replies),
    )
