"""A race over the cells of a plan: what to measure next, until it is over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.methods.resolve import follows
from harness.recommend.budget import Budget
from harness.recommend.candidates import OWN
from harness.recommend.chances import Array
from harness.recommend.race import (
    FAILED,
    ONE,
    Losses,
    Rules,
    Standing,
    affordable,
    decided,
    priced,
    unpriced,
)
from harness.runs.schema import checked_samples
from harness.runs.store import measured
from harness.sweep.cells import Cell, Item, Key
from harness.sweep.plan import Plan
from scaling import native

Measure = Callable[[Plan], object]
Told = Callable[[Standing, int], None]


@dataclass
class Race:
    """The candidates of a plan of two lengths, the window and the target, and what is measured.

    ``alike`` are the candidates that are the same measurement at both lengths as another.
    """

    plan: Plan
    folder: Path
    rules: Rules
    budget: Budget
    measure: Measure
    asked: dict[Key, int] = field(default_factory=dict)  # the length of every sample asked for
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the candidates, and the documents in an order of their own."""
        self.cells = {(cell.scaling, cell.length): cell for cell in self.plan.cells}
        self.window, self.target = self.plan.lengths
        every = [method.label for method in self.plan.methods]
        self.failed = {name: told for name in every if (told := self._failed(name))}
        first: dict[tuple[str | None, ...], str] = {}
        self.alike: dict[str, list[str]] = {}
        for name in every:
            if name not in self.failed:
                sign = tuple(self.cell(name, at).frequencies for at in self.plan.lengths)
                self.alike.setdefault(first.setdefault(sign, name), []).append(name)
        self.order = list(range(len(self.cells[OWN, self.target].questions)))
        Random(self.plan.spec.seed).shuffle(self.order)
        self.samples: Mapping[Key, Mapping[str, Any]] = checked_samples(self.folder)

    def run(self, told: Told) -> Standing:
        """Measure round by round until the race is over; ``told`` is given the state after each.

        Who was dropped because of one that has no number later comes back, also after the end.
        """
        standing, before = Standing(tuple(self.alike)), Standing(())
        while not set(standing.left) <= set(before.left):
            before = standing = self._rounds(standing, told)
            paid, count = self._affordable(standing), standing.documents
            standing = self._with_numbers(standing, paid, self.window, count)
        known = [n for n in standing.left if self.free(n) or n in paid]
        standing = priced(standing, {n: self.price(n, count) for n in known}, self.rules)
        alone = len(standing.left) == 1 and not standing.open
        return replace(standing, ended=ONE) if alone else standing

    def _rounds(self, standing: Standing, told: Told) -> Standing:
        """Measure and decide until the race is over, from the documents so far."""
        for end in (end for end in self.rules.rounds if end >= standing.documents):
            again = True
            while again:  # who comes back is measured on the documents so far
                before = standing
                standing = self._with_numbers(standing, standing.left, self.target, end)
                standing, prices = self._prices(standing, end)
                far = self.losses(standing.left, self.target, end)
                standing = decided(standing, far, prices, self.rules)
                again = not set(standing.left) <= set(before.left)
            left = {name: far[name] for name in standing.left}
            room = self._spare(), self._reserve(standing)
            standing = affordable(standing, left, *room, self.rules)
            told(standing, len(self.asked))
            if standing.ended:
                break
        return standing

    def cell(self, name: str, length: int) -> Cell:
        """Return the cell of a candidate."""
        return self.cells[name, length]

    def losses(self, names: Iterable[str], length: int, end: int) -> Losses:
        """Return the loss a token of the first documents, of candidates that have all of them."""
        found = {}
        for name in names:
            records = [self.samples[key] for key in self.keys(name, length, end)]
            found[name] = np.array([record["value"] / record["weight"] for record in records])
        return found

    def price(self, name: str, end: int) -> Array:
        """Return a candidate's losses inside the window less the model's own there."""
        if self.free(name):
            return np.zeros(end)
        both = self.losses((name, OWN), self.window, end)
        return both[name] - both[OWN]

    def free(self, name: str) -> bool:
        """Return whether a candidate is the model itself inside the window."""
        own = self.cell(OWN, self.window).frequencies
        return self.cell(name, self.window).frequencies == own

    @property
    def ships(self) -> bool:
        """Whether the checkpoint has a scaling of its own, so that the plain model is not it."""
        return native.ships(self.plan.checkpoint.rope)

    def follows(self, name: str) -> bool:
        """Return whether a candidate inside the window is not that of the target, cut there."""
        far, near = (self.cell(name, at).rotation for at in (self.target, self.window))
        return follows(far, near, self.window)

    @property
    def grid(self) -> int:
        """Return the forwards that measuring everything would take, those that fail included."""
        keys = {self.cell(name, at).key for name in self.alike for at in self.plan.lengths}
        return len(keys) * len(self.order)

    @property
    def seconds(self) -> float:
        """Return how long the samples took that were asked for."""
        return sum(float(self.samples[key].get("seconds") or 0) for key in self.asked)

    def first(self) -> Plan:
        """Return what the first round asks for, as a plan."""
        names = tuple(self.alike)
        keys = {key for n in names for key in self.keys(n, self.target, self.rules.rounds[0])}
        return replace(self.plan, only=keys)

    def _prices(self, standing: Standing, end: int) -> tuple[Standing, dict[str, Array]]:
        """Return the prices that are known by construction, and of who would lead."""
        prices: dict[str, Array] = {}
        while True:
            prices |= {n: self.price(n, end) for n in standing.left if self.free(n)}
            far = self.losses(standing.left, self.target, end)
            name = unpriced(standing, far, prices, self.rules)
            if name is None:
                return standing, prices
            standing = self._with_numbers(standing, (name,), self.window, end)
            if name in standing.left:
                prices[name] = self.price(name, end)

    def _with_numbers(
        self, standing: Standing, names: tuple[str, ...], length: int, end: int
    ) -> Standing:
        """Measure candidates, and drop those that lack a number; who came second comes back."""
        asked = [name for name in names if length == self.target or not self.free(name)]
        if length == self.window and asked:
            asked.append(OWN)
        keys = {name: self.keys(name, length, end) for name in asked}
        wanted = {key for some in keys.values() for key in some}
        self.asked |= dict.fromkeys(wanted, length)
        missing = wanted - measured(self.samples)
        if missing:
            self.measure(replace(self.plan, only=missing))
            self.samples = checked_samples(self.folder)
        lost = {}
        for name, its in keys.items():
            records = [self.samples.get(key, {}) for key in its]
            bad = [record for record in records if record.get("status") != "ok"]
            if bad:
                lost[name] = str(bad[0].get("reason") or bad[0].get("status"))
        back = replace(standing, documents=end).without(dict.fromkeys(lost, ""), FAILED).again(lost)
        if not back.left or (length == self.window and OWN in lost):
            why = next(iter(lost.values()))
            message = (
                f"{self.plan.checkpoint.label} itself has no number at {length:,} tokens: {why}"
            )
            raise UserError(message)
        self.failed |= lost
        new = tuple(name for name in back.left if name not in standing.left)
        return self._with_numbers(back, new, self.target, end) if new else back

    def keys(self, name: str, length: int, end: int) -> list[Key]:
        """Return the samples of a candidate on the first documents."""
        cell = self.cell(name, length)
        return [Item(cell, cell.questions[place]).key for place in self.order[:end]]

    def _failed(self, name: str) -> str | None:
        return next(filter(None, (self.cell(name, at).failed for at in self.plan.lengths)), None)

    def _spare(self) -> float:
        """Return how many forwards at the target the budget has left."""
        if self.budget.forwards is not None:
            return self.budget.forwards - len(self.asked)
        if self.budget.seconds is None:
            return math.inf
        far = [key for key, length in self.asked.items() if length == self.target]
        took = sum(float(self.samples[key].get("seconds") or 0) for key in far) / len(far)
        return (self.budget.seconds - self.seconds) / max(took, 1e-9)

    def _reserve(self, standing: Standing) -> float:
        """Return the forwards that two candidates need to the end, with prices."""
        whole = len(self.order)
        dear = any(not self.free(name) for name in standing.left)
        return 2 * (whole - standing.documents) + (2 * whole if dear else 0)

    def _affordable(self, standing: Standing) -> tuple[str, ...]:
        """Return whose price the budget still pays: the leader's, and of others the first ones."""
        dear = [name for name in standing.left if not self.free(name) and name != standing.leader]
        room = self._spare() / max(1, standing.documents) - 1
        most = int(max(0.0, min(room, len(dear))))
        return (standing.leader, *dear[:most])
