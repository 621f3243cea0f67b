"""Measure what a plan asks for and the run folder lacks, sample by sample."""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from harness.checkpoint import load_weights
from harness.estimate import fitted
from harness.patch import Answering, answering, scaled
from harness.plan import Cell, Plan
from harness.plugins import Plugin, call
from harness.record import describe
from harness.store import RUN, append, measured, read_run, read_samples, write_run, writing
from tasks._types import Answer, Question, Sample

Item = tuple[Cell, Question]
Record = dict[str, Any]
Watch = Callable[[Cell, Question, Record], None]
Watching = Callable[[Sequence[Item]], AbstractContextManager[Watch]]


def measure(plan: Plan, folder: Path, watching: Watching) -> int:
    """Complete the run folder and return how many of the plan's samples have no number.

    ``watching`` is given what is left to measure, and what it yields sees each sample as it ends.
    Everything measured before is kept and not measured again. Raises UserError when the folder is
    another model's or another process writes it, and when ``max_memory`` is too little.
    """
    with writing(folder) as file:
        before = read_run(folder) if (folder / RUN).exists() else None
        samples = read_samples(folder)
        work = plan.work(measured(samples))
        sizes = fitted(plan, work)
        record = describe(plan, before, measuring=bool(work))
        model = load_weights(plan.checkpoint) if work else None
        write_run(folder, record)
        with watching([item for items in work.values() for item in items]) as watch:
            for fingerprint, items in work.items():
                rotation = plan.rotations[fingerprint]
                with scaled(model, rotation):
                    answer_all = answering(rotation, sizes)
                    for (cell, question), sample in _measured(plan, model, answer_all, items):
                        append(file, {**sample, "session": len(record["sessions"]) - 1})
                        samples[cell.key, question.digest] = sample
                        watch(cell, question, sample)
    asked = {(cell.key, question.digest) for cell in plan.cells for question in cell.questions}
    return sum(samples[key]["status"] != "ok" for key in asked)


def _measured(
    plan: Plan, model: Any, answer_all: Answering, items: Sequence[Item]
) -> Iterator[tuple[Item, Record]]:
    """Yield each item with its record as it is measured."""
    tasks = {task.label: task for task in plan.tasks}
    device = plan.checkpoint.device
    _start_peak(device)
    began = time.perf_counter()
    for index, answer in answer_all(model, [question for _, question in items]):
        cell, question = items[index]
        outcome = _graded(tasks[cell.task], question, answer, plan)
        seconds = time.perf_counter() - began
        yield items[index], _record(items[index], outcome, seconds, _peak_mib(device))
        _start_peak(device)
        began = time.perf_counter()


def _graded(task: Plugin, question: Question, answer: Answer | None, plan: Plan) -> Record:
    """Grade an answer; too little memory or an infinite loss is a status, never a number."""
    if answer is None:
        return {"status": "out_of_memory", "value": None, "weight": 0}
    if not all(map(math.isfinite, answer.nll)):
        first = next(i for i, nll in enumerate(answer.nll) if not math.isfinite(nll))
        facts = {**question.facts, "position": question.start + first}
        return {"status": "not_finite", "value": None, "weight": 0, "facts": facts}
    return call(f"task {task.label}", lambda: _ok(task.module.grade(question, answer, plan.source)))


def _ok(sample: Sample) -> Record:
    """Return a graded sample as it is recorded; raise what a file of numbers cannot hold."""
    facts = dict(sample.facts)
    outcome: Record = {
        "status": "ok", "value": sample.value, "weight": sample.weight, "facts": facts,
    }  # fmt: skip
    json.dumps(outcome, allow_nan=False)
    return {**outcome, "value": float(sample.value)}


def _record(item: Item, outcome: Record, seconds: float, peak_mib: float) -> Record:
    cell, question = item
    return {
        "cell": cell.key,
        "question": question.digest,
        "task": cell.task,
        "length": cell.length,
        "frequencies": cell.frequencies,
        "unit": question.unit,
        "facts": dict(question.facts),
        **outcome,
        "seconds": round(seconds, 4),
        "peak_mib": round(peak_mib, 1),
    }


def _start_peak(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_mib(device: str) -> float:
    """Return the peak memory: of this sample on a GPU, of the process so far on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
