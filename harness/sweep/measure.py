"""Measure the samples of a plan that are not yet in the run folder, and store them."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from ropewalk.harness.engine import OutOfMemory
from ropewalk.harness.errors import UserError, printable
from ropewalk.harness.plugins import call
from ropewalk.harness.runs.compatible import check_same_server
from ropewalk.harness.runs.record import SampleRecord
from ropewalk.harness.runs.store import append, each_sample, measured, write_run, writing
from ropewalk.harness.sweep.memory import needed
from ropewalk.harness.sweep.plan import Backend, Failed, Item, Key, Plan, Reply, check_facts
from ropewalk.harness.sweep.record import records
from ropewalk.harness.sweep.this_process import ThisProcess
from ropewalk.tasks.types import (
    DivergenceResponse,
    Fact,
    Group,
    GroupResponse,
    ModelResponse,
    Request,
    Sample,
)

Record = dict[str, Any]  # a part of a sample's


@dataclass(frozen=True)
class Started:
    """What is left to measure, before the weights are loaded: each will be stored."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Stored:
    """A sample that is now on the disk: what it was measured of, and its record."""

    item: Item
    sample: SampleRecord


Event = Started | Stored


def measure(plan: Plan, folder: Path, backend: Backend | None = None) -> Generator[Event]:
    """Measure the missing samples of a plan, and yield each once it is on the disk.

    What the folder has is not measured again. ``replace(plan, only=keys)`` is a part of a plan.
    Without a backend the weights are loaded in this process. Raises UserError where the folder
    belongs to another model or sweep, cannot be written or is written by another process, and where
    ``max_memory`` is too little.
    """
    backend = backend or ThisProcess()
    _, record = records(plan, folder)  # nothing in the folder changes before it is known to match
    check_same_server(folder, record["sessions"], backend.machines)
    try:
        with writing(folder) as samples:
            done = measured(each_sample(folder))
            left, work = tuple(plan.left(done)), plan.work(done)
            yield Started(left)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            replies = backend.answers(plan, work) if work else iter(())
            first = [*islice(replies, 1)]  # the weights are loaded now
            session = {"started": now, **backend.machines}
            record["sessions"] += [session] if work else []
            write_run(folder, record)
            for item in left:
                if (question := item.question).too_long:
                    text = f"it needs {question.length:,} tokens, the cell has {question.cell:,}"
                    lost = _lost(question, "too_long", text, needs=question.length)
                    yield _stored(samples, item, lost)
            groups = {
                Item(item.cell, part).key: item
                for item in left
                for part in item.question.model_requests
                if isinstance(item.question, Group)
            }
            parts: dict[Key, dict[Key, Reply]] = {}  # of the groups that lack replies
            for item, reply in chain(first, replies):
                if session != session | backend.machines:  # a worker has joined
                    session |= backend.machines
                    write_run(folder, record)
                if group := groups.get(item.key):
                    replied = parts.setdefault(group.key, {})
                    replied[item.key] = reply
                    if len(replied) < len(group.question.model_requests):
                        continue
                    item, reply = group, _joined(group, parts.pop(group.key))
                measured_by = {
                    "seconds": round(reply.seconds, 4),
                    "peak_mib": round(reply.peak_mib, 1),
                    "shared": reply.shared,
                    "session": len(record["sessions"]) - 1,
                }
                yield _stored(samples, item, _graded(plan, item, reply) | measured_by)
    except KeyboardInterrupt as error:
        error.add_note("everything measured is kept. The same command continues")
        raise


def _joined(group: Item, replies: dict[Key, Reply]) -> Reply:
    """Return the replies to the parts of a group as one: the first failure, or all responses."""
    ordered = [replies[Item(group.cell, part).key] for part in group.question.model_requests]
    responses = [one.outcome for one in ordered if isinstance(one.outcome, ModelResponse)]
    failed = [one.outcome for one in ordered if not isinstance(one.outcome, ModelResponse)]
    return Reply(
        failed[0] if failed else GroupResponse(tuple(responses)),
        sum(one.seconds for one in ordered),
        max(one.peak_mib for one in ordered),
        all(one.shared for one in ordered),
    )


def _stored(samples: BinaryIO, item: Item, outcome: Record) -> Stored:
    cell, (key, question) = item.cell, item.key
    named = {"cell": key, "question": question, "task": cell.task, "length": cell.length}
    of = {"frequencies": cell.frequencies, "unit": item.question.doc_id}
    sample = cast(SampleRecord, named | of | outcome)
    append(samples, sample)
    return Stored(item, sample)


def _graded(plan: Plan, item: Item, reply: Reply) -> Record:
    """Grade a response; what has no number is a status and a reason, never a number."""
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
        numbers = its.values if isinstance(its, DivergenceResponse) else its.nll
        for place, number in enumerate(numbers, start=part.start):
            if not math.isfinite(number):
                kind = "divergence" if isinstance(its, DivergenceResponse) else "loss"
                text = f"the {kind} at position {place} is {number}"
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
    value, weight, facts = float(sample.value), int(sample.weight), dict(sample.metadata)
    if not math.isfinite(value) or weight < 1:
        raise ValueError(f"it graded with the value {value} and the weight {weight}")
    check_facts(facts)
    return {"status": "ok", "value": value, "weight": weight, "facts": facts}
