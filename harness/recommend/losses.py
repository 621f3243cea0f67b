"""The samples that a race or a search measures where they are missing, and a race's budget."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.resolve import depends_on_length
from ropewalk.harness.recommend.candidates import OWN, measures
from ropewalk.harness.runs.store import measured, read_samples
from ropewalk.harness.stats.measure import Units
from ropewalk.harness.sweep.measure import Stored, measure
from ropewalk.harness.sweep.memory import costs
from ropewalk.harness.sweep.notes import note_plan
from ropewalk.harness.sweep.plan import Backend, Batch, Cell, Item, Key, Plan
from ropewalk.harness.sweep.progress import follow
from ropewalk.harness.sweep.record import records

FAR, NEAR, CUT = "far", "near", "cut"  # at the target; inside the window; truncated to the window
# One of these, a candidate, and on how many documents or trials of every task, or all that it has.
Need = tuple[str, str, int]
At = tuple[str, str, str]  # a task, one of these, and a candidate
SLOWER = 1.15  # times the measured rate: what happens between the forwards, and their spread


class Measurements:
    """The samples of a run folder, in memory, and measured where they are missing."""

    def __init__(self, plan: Plan, command: str, backend: Backend) -> None:
        """Raise UserError for the folder of another run, in a dry run too."""
        self.plan, self.backend = plan, backend
        self.folder = plan.spec.out or Path("results") / f"{command}-{plan.checkpoint.label}"
        note_plan(plan)
        records(plan, self.folder)
        self.samples: dict[Key, Mapping[str, Any]] = {**read_samples(self.folder)}

    def complete(self, keys: Set[Key]) -> None:
        """Measure those of these samples that are missing."""
        part = replace(self.plan, only=keys - measured(self.samples.values()))
        if next(part.left(set()), None) is not None:
            for event in follow(measure(part, self.folder, self.backend)):
                if isinstance(event, Stored):
                    self.samples[event.item.key] = event.sample


@dataclass(frozen=True)
class Budget:
    """The most that a race may take, in seconds or in forwards at the target length."""

    most: float = math.inf
    timed: bool = False

    def text(self, cost: float) -> str:
        """Return a part of the budget in words, rounded up."""
        if math.isinf(cost):
            return "no limit"
        if self.timed:
            return str(timedelta(seconds=math.ceil(cost)))
        return f"{math.ceil(cost):,} forwards"


def read_budget(text: str | None, default: float) -> Budget:
    """Parse a budget; None is the default number of forwards. Raise UserError if it is invalid."""
    if text is None or text == "all":
        return Budget(default if text is None else math.inf)
    if text.isdecimal() and int(text):
        return Budget(float(text))
    with suppress(ValueError):
        if (seconds := pd.Timedelta(text).total_seconds()) > 0 and not text.isdecimal():
            return Budget(seconds, timed=True)
    raise UserError(f"--budget {text!r} is invalid: write 2h, 15min, a number of forwards, or all.")


class Losses(Measurements):
    """The losses of the candidates of a race by document or trial, and what they take to measure.

    That is counted in forwards of the target length, by their operations.

    Attributes:
        tasks: the tasks by which it decides, by label, and how they measure.
        order: the documents or trials of each task, in the order in which they are measured.
        failed: the methods that have no rotation, or no number, and why.
        requested: the samples of this race so far, in their order.
        seconds: how long a forward took so far, without the first, slow sample.
    """

    def __init__(self, plan: Plan, backend: Backend) -> None:
        super().__init__(plan, "recommend", backend)
        self.budget, self.began = Budget(), time.monotonic()
        self.window, self.target = plan.lengths
        self.tasks = measures(plan)
        self._cells: dict[At, Cell] = {}
        for task, how in self.tasks.items():
            inside = task
            if not how.share:  # the other task of perplexity is for the inside of the window
                inside = next(other.label for other in plan.tasks if other.label not in self.tasks)
            places = {
                (task, self.window): CUT,
                (inside, self.window): NEAR,
                (task, self.target): FAR,
            }
            for cell in plan.cells:
                if kind := places.get((cell.task, cell.length)):
                    self._cells[task, kind, cell.scaling] = cell
        self.order: dict[str, list[str]] = {}
        for task in self.tasks:
            near = {request.doc_id for request in self._cells[task, NEAR, OWN].questions}
            far = dict.fromkeys(one.doc_id for one in self._cells[task, FAR, OWN].questions)
            self.order[task] = [unit for unit in far if unit in near]
            if not self.order[task]:
                raise UserError(f"{task} has no document or trial both at {self.target:,} tokens "
                                f"and at {self.window:,}.")  # fmt: skip
            Random(plan.spec.seed).shuffle(self.order[task])
        self.failed = {cell.scaling: cell.failed for cell in plan.cells if cell.failed is not None}
        self.requested: dict[Key, None] = {}
        self.seconds = 0.0
        self._keys: dict[At, dict[str, list[Key]]] = {}
        self._sizes: dict[Key, float] = {}  # in forwards of the target length
        plain = self._cells[next(iter(self.tasks)), FAR, OWN]
        whole = next(self._costs(replace(plain, questions=plain.questions[:1])))[1]
        for at, cell in self._cells.items():
            self._keys[at] = {unit: [] for unit in self.order[at[0]]}
            for item, cost in self._costs(cell):
                if item.question.doc_id in self._keys[at]:
                    self._keys[at][item.question.doc_id].append(item.key)
                    self._sizes[item.key] = cost / whole

    @property
    def size(self) -> int:
        """The documents or trials of the task that has the most."""
        return max(map(len, self.order.values()))

    @property
    def nouns(self) -> str:
        """What is counted: documents, trials, or both."""
        return " and ".join(dict.fromkeys(how.units for how in self.tasks.values()))

    def _costs(self, cell: Cell) -> Iterator[tuple[Item, float]]:
        """Yield the requests of a cell and their operations; what they share is counted once."""
        if cell.rotation is not None:
            parts = [[Item(cell, of) for of in one.model_requests] for one in cell.questions]
            batch = Batch(cell.rotation, tuple(chain.from_iterable(parts)))
            each = costs(self.plan.checkpoint, batch)
            for question, own in zip(cell.questions, parts, strict=True):
                yield Item(cell, question), sum(next(each).operations for _ in own)

    def keys(self, need: Need) -> list[Key]:
        """Return the samples of a candidate on the first documents or trials of every task."""
        kind, name, count = need
        return [
            key
            for task, order in self.order.items()
            if (task, kind, name) in self._keys
            for unit in order[:count]
            for key in self._keys[task, kind, name][unit]
        ]

    def units(self, task: str, need: Need) -> Units:
        """Return the mean loss, or the share of hits, on the first documents or trials of a task.

        Each counts alike.
        """
        (kind, name, count), result = need, {}
        for unit in self.order[task][:count]:
            samples = [self.samples[key] for key in self._keys[task, kind, name][unit]]
            total = math.fsum(sample["value"] for sample in samples)
            result[unit] = total / sum(sample["weight"] for sample in samples), 1.0
        return result

    def depends_on_length(self, name: str) -> bool:
        """Return whether a candidate's form changes with the length of the input."""
        task = next(iter(self.tasks))
        far, near = (self._cells[task, kind, name].rotation for kind in (FAR, NEAR))
        return depends_on_length(far, near, self.window)

    def measure(self, needs: Iterable[Need]) -> bool:
        """Measure what is missing; return whether every candidate has its numbers.

        Raises UserError if the plain model has no number inside the window, or on windows.
        """
        needs, complete = list(needs), True
        self.requested |= (wanted := self._wanted(needs))
        self.complete(wanted.keys())
        later = [k for k in [*self.requested][1:] if self.samples.get(k, {}).get("status") == "ok"]
        if sizes := math.fsum(self._sizes[key] for key in later):
            # Of samples that were computed together, one has the time of all.
            self.seconds = math.fsum(self.samples[key]["seconds"] for key in later) / sizes
        for need in needs:
            kind, name, _ = need
            for key in self.keys(need):
                sample = self.samples.get(key, {})
                if sample.get("status") != "ok":
                    complete = False
                    self.failed[name] = str(sample.get("reason") or sample.get("status"))
                    if name == OWN and kind != FAR:
                        raise UserError(
                            f"{self.plan.checkpoint.label} itself has no number at "
                            f"{self.window:,} tokens: {self.failed[name]}"
                        )
        return complete

    def _wanted(self, needs: Iterable[Need]) -> dict[Key, None]:
        return dict.fromkeys(key for need in needs for key in self.keys(need))

    def forwards(self, needs: Iterable[Need] | None = None) -> float:
        """Return how many forwards of the target length these samples, or all requested, take."""
        keys = self.requested if needs is None else self._wanted(needs)
        return sum(self._sizes[key] for key in keys)

    def spent(self) -> float:
        """Return how much of the budget is spent; samples of earlier sessions cost no time."""
        return time.monotonic() - self.began if self.budget.timed else self.forwards()

    def cost(self, needs: Iterable[Need]) -> float:
        """Return how much of the budget it takes to measure what was not requested yet."""
        new = [key for key in self._wanted(needs) if key not in self.requested]
        if not self.budget.timed:
            return sum(self._sizes[key] for key in new)
        done = measured(self.samples.values())
        left = sum(self._sizes[key] for key in new if key not in done)
        return left * self.seconds * SLOWER / self.backend.workers
