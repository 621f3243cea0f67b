"""The samples that a race or a search measures where they are missing, and a race's budget."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.resolve import depends_on_length
from ropewalk.harness.recommend.candidates import OWN, measures
from ropewalk.harness.recommend.decision import difference
from ropewalk.harness.runs.store import measured, read_samples
from ropewalk.harness.stats.measure import Measure
from ropewalk.harness.stats.paired import Array, Difference
from ropewalk.harness.sweep.backend import Backend
from ropewalk.harness.sweep.measure import Stored, measure
from ropewalk.harness.sweep.memory import costs
from ropewalk.harness.sweep.plan import Batch, Cell, Item, Key, Plan
from ropewalk.harness.sweep.progress import follow

FAR, NEAR, CUT = "far", "near", "cut"  # at the target; inside the window; truncated to the window
# One of these, a candidate, and on how many documents or trials of every task, or all that it has.
Need = tuple[str, str, int]
At = tuple[int, str, str]  # the place of a task, one of these, and a candidate
SLOWER = 1.15  # times the measured rate: what happens between the forwards, and their spread


class Measurements:
    """The samples of a run folder, in memory, and measured where they are missing."""

    def __init__(self, plan: Plan, folder: Path, backend: Backend) -> None:
        self.plan, self.folder, self.backend = plan, folder, backend
        self.samples: dict[Key, Mapping[str, Any]] = {**read_samples(folder)}

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
        return (
            str(timedelta(seconds=math.ceil(cost)))
            if self.timed
            else f"{math.ceil(cost):,} forwards"
        )


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
        order: the documents or trials of every task, in the order in which they are measured.
        failed: the methods that have no rotation, and why.
        requested: the samples of this race so far, each with its method.
        seconds: the seconds per forward that were measured, by method; "" is any method.
    """

    tasks: dict[str, Measure]
    order: list[list[str]]

    def __init__(self, plan: Plan, folder: Path, backend: Backend) -> None:
        super().__init__(plan, folder, backend)
        self.budget, self.began = Budget(), time.monotonic()
        self.window, self.target = plan.lengths
        self.tasks, kinds = measures(plan), dict[tuple[str, int], tuple[int, str]]()
        for place, (far, how) in enumerate(self.tasks.items()):
            near = (
                far
                if how.share
                else next(task.label for task in plan.tasks if task.label not in self.tasks)
            )
            kinds |= {(far, self.window): (place, CUT), (far, self.target): (place, FAR)}
            kinds[near, self.window] = place, NEAR
        cells = {
            (*kinds[cell.task, cell.length], cell.scaling): cell
            for cell in plan.cells
            if (cell.task, cell.length) in kinds
        }
        self.order = []
        for place in range(len(self.tasks)):
            units = (request.doc_id for request in cells[place, FAR, OWN].questions)
            self.order.append(list(dict.fromkeys(units)))
            Random(plan.spec.seed).shuffle(self.order[-1])
        self.failed = {cell.scaling: cell.failed for cell in plan.cells if cell.failed is not None}
        self.requested: dict[Key, str] = {}
        self.seconds: dict[str, float] = {}
        self._rotations = {at: cell.rotation for at, cell in cells.items()}
        self._keys: dict[At, dict[str, list[Key]]] = {}
        self._sizes: dict[Key, float] = {}  # in forwards of the target length
        plain = cells[0, FAR, OWN]
        whole = next(self._costs(replace(plain, questions=plain.questions[:1])))[1]
        for at, cell in cells.items():
            self._keys[at] = {unit: [] for unit in self.order[at[0]]}
            for item, cost in self._costs(cell):
                self._keys[at][item.question.doc_id].append(item.key)
                self._sizes[item.key] = cost / whole

    @property
    def size(self) -> int:
        """The documents or trials of the task that has the most."""
        return max(map(len, self.order))

    @property
    def units(self) -> str:
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

    def keys(self, need: Need) -> list[list[Key]]:
        """Return the samples of a candidate on each of the first documents or trials."""
        kind, name, count = need
        return [
            self._keys[place, kind, name][unit]
            for place, order in enumerate(self.order)
            if (place, kind, name) in self._keys
            for unit in order[:count]
        ]

    def losses(self, place: int, kind: str, name: str, count: int) -> Array:
        """Return the loss on each of the first documents or trials of the task at a place."""
        sign = 1 if [*self.tasks.values()][place].lower else -1
        each = []
        for unit in self.order[place][:count]:
            records = [self.samples[key] for key in self._keys[place, kind, name][unit]]
            nats = math.fsum(record["value"] for record in records)
            each.append(sign * nats / sum(record["weight"] for record in records))
        return np.array(each)

    def difference(
        self, place: int, one: tuple[str, str], other: tuple[str, str], count: int
    ) -> Difference:
        """Return by how much the score of one, a kind and a candidate, differs from another's."""
        losses = self.losses(place, *one, count) - self.losses(place, *other, count)
        return difference(losses, how=[*self.tasks.values()][place])

    def depends_on_length(self, name: str) -> bool:
        """Return whether a candidate's form changes with the length of the input."""
        far, near = (self._rotations[0, kind, name] for kind in (FAR, NEAR))
        return depends_on_length(far, near, self.window)

    def measure(self, needs: Iterable[Need]) -> dict[str, str]:
        """Measure what is missing; return the candidates that have no number, and why.

        Raises UserError if the plain model has no number inside the window, or on windows.
        """
        needs = list(needs)
        self.requested |= (wanted := self._wanted(needs))
        self.complete(wanted.keys())
        self._update_rates()
        failed = {}
        for kind, name, count in needs:
            for key in chain.from_iterable(self.keys((kind, name, count))):
                sample = self.samples.get(key, {})
                if sample.get("status") != "ok":
                    failed[name] = str(sample.get("reason") or sample.get("status"))
                    if name == OWN and kind != FAR:
                        raise UserError(
                            f"{self.plan.checkpoint.label} itself has no number at "
                            f"{self.window:,} tokens: {failed[name]}"
                        )
        return failed

    def _wanted(self, needs: Iterable[Need]) -> dict[Key, str]:
        return {key: need[1] for need in needs for key in chain.from_iterable(self.keys(need))}

    def _update_rates(self) -> None:
        """Update the seconds per forward of each method, without the first, slow sample.

        They are of all its samples together: of those computed together, one has the time of all.
        """
        seconds, sizes = defaultdict[str, float](float), defaultdict[str, float](float)
        for key, name in list(self.requested.items())[1:]:
            sample = self.samples.get(key, {})
            if sample.get("status") == "ok":
                for of in (name, ""):
                    seconds[of] += sample["seconds"]
                    sizes[of] += self._sizes[key]
        self.seconds = {name: seconds[name] / sizes[name] for name in sizes}

    def forwards(self, needs: Iterable[Need] | None = None) -> float:
        """Return how many forwards of the target length these samples, or all requested, take."""
        keys = self.requested if needs is None else self._wanted(needs)
        return sum(self._sizes[key] for key in keys)

    def spent(self) -> float:
        """Return how much of the budget is spent; samples of earlier sessions cost no time."""
        return time.monotonic() - self.began if self.budget.timed else self.forwards()

    def cost(self, needs: Iterable[Need]) -> float:
        """Return how much of the budget it takes to measure what was not requested yet."""
        new = {key: name for key, name in self._wanted(needs).items() if key not in self.requested}
        if not self.budget.timed:
            return sum(self._sizes[key] for key in new)
        done, rate = measured(self.samples.values()), self.seconds.get("", 0.0)
        left = {key: self.seconds.get(name, rate) for key, name in new.items() if key not in done}
        seconds = sum(self._sizes[key] * pace for key, pace in left.items())
        return seconds * SLOWER / self.backend.workers
