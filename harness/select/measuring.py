"""What a race asks of a model: the samples of a plan, and what they cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.methods.resolve import depends_on_length
from harness.runs.schema import checked_samples
from harness.runs.store import measured
from harness.select.candidates import OWN
from harness.select.race import CUT, FAR, NEAR, Array, Ask, Budget
from harness.sweep.eta import ETA, before
from harness.sweep.plan import Cell, Item, Key, Plan

Measure = Callable[[Plan], Iterable[Mapping[str, Any]]]
SLOWER = 1.15  # times what is expected: checks between the forwards, and their spread


def tasks(trained: int, target: int) -> tuple[str, str]:
    """Return the tasks of a race: all tokens beyond the window, and half of it inside."""
    return f"perplexity:tail={target - trained},slide=true", f"perplexity:tail={trained // 2}"


@dataclass
class Measured:
    """The samples of a plan, measured where they are missing.

    ``failed`` are the candidates that have no rotation; ``names`` are all others. ``workers``
    measure at the same time on a ``machine``.
    """

    plan: Plan
    folder: Path
    measure: Measure
    budget: Budget
    machine: str
    workers: int = 1
    asked: dict[Key, tuple[str, int]] = field(default_factory=dict)  # the method and the length

    def __post_init__(self) -> None:
        self.window, self.target = self.plan.lengths
        far, near = (task.label for task in self.plan.tasks)
        where = {FAR: (far, self.target), NEAR: (near, self.window), CUT: (far, self.window)}
        cells = {(one.task, one.length, one.scaling): one for one in self.plan.cells}
        self.cells: dict[tuple[str, str], Cell] = {
            (kind, method.label): cells[task, length, method.label]
            for kind, (task, length) in where.items() for method in self.plan.methods
        }  # fmt: skip
        self.items: dict[tuple[str, str], list[list[Key]]] = {}
        self.order = list(dict.fromkeys(q.doc_id for q in self.cells[FAR, OWN].questions))
        Random(self.plan.spec.seed).shuffle(self.order)
        self.failed = {
            cell.scaling: cell.failed for cell in self.plan.cells if cell.failed is not None
        }
        self.names = [m.label for m in self.plan.methods if m.label not in self.failed]
        self.samples: dict[Key, Mapping[str, Any]] = dict(checked_samples(self.folder))
        self.began = time.monotonic()

    def keys(self, kind: str, name: str, documents: int) -> list[list[Key]]:
        """Return the samples of a candidate on each of the first documents."""
        if (kind, name) not in self.items:
            cell, units = self.cells[kind, name], dict[str, list[Key]]()
            for question in cell.questions:
                units.setdefault(question.doc_id, []).append(Item(cell, question).key)
            self.items[kind, name] = [units[unit] for unit in self.order]
        return self.items[kind, name][:documents]

    def losses(self, kind: str, name: str, documents: int) -> Array:
        """Return the loss per token of each of the first documents."""
        records = [[self.samples[key] for key in keys] for keys in self.keys(kind, name, documents)]
        return np.array([
            math.fsum(one["value"] for one in some) / sum(one["weight"] for one in some)
            for some in records
        ])  # fmt: skip

    def free(self, name: str) -> bool:
        """Return whether a candidate is the plain model inside the window."""
        return self.cells[NEAR, name].frequencies == self.cells[NEAR, OWN].frequencies

    def depends_on_length(self, name: str) -> bool:
        """Return whether a candidate's form changes with the length of the input."""
        near, far = self.cells[NEAR, name].rotation, self.cells[FAR, name].rotation
        return depends_on_length(far, near, self.window)

    def ask(self, asks: Iterable[Ask]) -> dict[str, str]:
        """Measure what is missing; return the candidates that have no number, and why.

        Raises UserError where the plain model has none inside the window.
        """
        wanted = [(ask, keys) for ask in asks for keys in self.keys(*ask)]
        for (kind, name, _), keys in wanted:
            length = self.cells[kind, name].length
            self.asked |= {key: (name, length) for key in keys if key not in self.asked}
        missing = {key for _, keys in wanted for key in keys} - measured(self.samples)
        if missing:
            for sample in self.measure(replace(self.plan, only=missing)):
                self.samples[sample["cell"], sample["question"]] = sample
        self.__dict__.pop("rates", None)
        lost = {}
        for (kind, name, _), keys in wanted:
            records = [self.samples.get(key, {}) for key in keys]
            bad = next((one for one in records if one.get("status") != "ok"), None)
            if bad:
                lost[name] = str(bad.get("reason") or bad.get("status"))
                if (kind, name) == (NEAR, OWN):
                    raise UserError(
                        f"{self.plan.checkpoint.label} itself has no number at {self.window:,} "
                        f"tokens: {lost[name]}"
                    )
        return lost

    @property
    def forwards(self) -> float:
        """Return how many forwards were asked for; shorter ones count by their tokens."""
        return sum(length for _, length in self.asked.values()) / self.target

    def grid(self, names: Iterable[str]) -> float:
        """Return how many forwards it takes to measure these candidates on every document."""
        priced = [name for name in names if not self.free(name)]
        asks = [(FAR, name) for name in names] + [(NEAR, name) for name in [OWN, *priced]]
        return sum(
            len(keys) * self.cells[ask].length / self.target
            for ask in [*asks, (CUT, OWN)] for keys in self.keys(*ask, len(self.order))
        )  # fmt: skip

    def spent(self) -> float:
        """Return what was spent; samples of earlier sessions cost no time."""
        return time.monotonic() - self.began if self.budget.timed else self.forwards

    def seconds(self, keys: Iterable[Key]) -> float:
        """Return how long samples took."""
        return sum(float(self.samples.get(key, {}).get("seconds") or 0) for key in keys)

    def cost(self, asks: Iterable[Ask]) -> float:
        """Return what it takes to measure what was not asked for yet."""
        new: dict[Key, tuple[str, int]] = {}
        for kind, name, documents in asks:
            length = self.cells[kind, name].length
            for keys in self.keys(kind, name, documents):
                new |= {key: (name, length) for key in keys if key not in self.asked}
        if not self.budget.timed:
            return sum(length / self.target for _, length in new.values())
        known = measured(self.samples)
        return sum(self._rate(*one) * one[1] for key, one in new.items() if key not in known)

    def _rate(self, name: str, length: int) -> float:
        """Return the seconds per token of a method at a length: its own, or that of others."""
        for at in ((name, length), ("", length), (name, 0), ("", 0)):
            if at in self.rates:
                return self.rates[at] * SLOWER / self.workers
        return 0.0

    @cached_property
    def rates(self) -> dict[tuple[str, int], float]:
        """The seconds per token by method and length; "" is any method, 0 any length.

        The first sample of a session does not count: the machine warms up in it.
        """
        warming: dict[Any, Key] = {}
        for key, sample in self.samples.items():
            warming.setdefault(sample.get("session"), key)
        took: dict[tuple[str, int], list[float]] = {}
        for key, (name, length) in self.asked.items():
            seconds = 0.0 if key in warming.values() else self.seconds([key])
            for at in ((name, length), ("", length), (name, 0), ("", 0)):
                sums = took.setdefault(at, [0.0, 0.0])
                took[at] = [sums[0] + seconds, sums[1] + length * bool(seconds)]
        found = {at: seconds / tokens for at, (seconds, tokens) in took.items() if tokens}
        expected = None if found else self.pace([(FAR, OWN, 1)]).seconds_left()
        return found if expected is None else {("", 0): expected / self.target}

    def pace(self, asks: Iterable[Ask]) -> ETA:
        """Return the pace of what is missing, by what is known of this machine before."""
        wanted = {key for ask in asks for keys in self.keys(*ask) for key in keys}
        plan = replace(self.plan, only=wanted)
        return before(plan, plan.work(measured(self.samples)), self.machine)
