"""Run a search: every trial is a method of one run, measured on the documents of the search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import UserError
from harness.methods.resolve import resolve
from harness.plugins import load
from harness.reports.writing.sentences import counted
from harness.runs.schema import checked_samples
from harness.runs.store import measured
from harness.select.losses import (
    EVALUATOR,
    Kind,
    Losses,
    Masks,
    Samples,
    Split,
    key_masks,
    losses,
    score,
    wanted,
)  # fmt: skip
from harness.select.search import Trial, search
from harness.select.space import Space
from harness.sweep.cells import Item
from harness.sweep.plan import Plan, with_methods

Measure = Callable[[Plan], object]
RenderedTable = Callable[[Sequence[Trial]], None]


@dataclass
class Tuning:
    """A search under way: its run folder, and the plan with every method so far.

    The plan it begins with has the closed-form methods that the found one is compared with.
    """

    plan: Plan
    folder: Path
    length: int
    kind: Kind
    split: Split
    measure: Measure
    masks: Masks = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.closed = [method.label for method in self.plan.methods]

    def run(self, space: Space, trials: int, seed: int, told: RenderedTable) -> list[Trial]:
        """Measure the closed-form methods, then search; return all trials in order.

        ``told`` is given all trials so far after each generation.
        """
        self._complete(self.closed, self.split.search)
        if self.kind == "key tokens":
            self._complete([EVALUATOR], self.split.held)
            self.masks = key_masks(self.plan, checked_samples(self.folder), self.split)
        done: list[Trial] = []

        def scored(some: Sequence[Trial]) -> list[Trial]:
            found = self._scored(some)
            done.extend(found)
            told(done)
            return found

        return search(space, trials, seed, scored)

    def hold_out(self, found: Trial) -> str:
        """Measure a trial and the closed-form methods on what the search has not seen.

        Returns the trial's label.
        """
        label = load("method", found.method).label
        self._complete([*self.closed, label], self.split.held)
        return label

    def losses(self, label: str, units: Set[str]) -> Losses | None:
        """Return a method's losses on some documents, None where it has no number."""
        return self._losses(label, units, checked_samples(self.folder))

    def _losses(self, label: str, units: Set[str], samples: Samples) -> Losses | None:
        (cell,) = [c for c in self.plan.cells if (c.scaling, c.length) == (label, self.length)]
        return losses(cell, samples, units, self.kind, self.masks)

    def _scored(self, some: Sequence[Trial]) -> list[Trial]:
        """Return the trials of one generation with their scores."""
        labels = {trial.number: self._added(trial.method) for trial in some}
        self._complete([label for label in labels.values() if label], self.split.search)
        samples = checked_samples(self.folder)
        scores = {
            number: score(self._losses(label, self.split.search, samples)) if label else math.inf
            for number, label in labels.items()
        }
        return [replace(trial, score=scores[trial.number]) for trial in some]

    def _added(self, given: str) -> str | None:
        """Add a method to the plan, and return its label; None for values that it refuses."""
        try:
            method = load("method", given)
            resolve(method, self.plan.checkpoint.rope, self.length)
        except UserError:
            return None
        known = {one.label: one.given for one in self.plan.methods}
        if known.get(method.label, given) != given:
            raise UserError(f"{known[method.label]} and {given} have one name; rename the first.")
        if method.label not in known:
            more = with_methods(self.plan, [given])
            scaling = (*self.plan.spec.scaling, given)
            self.plan = replace(
                self.plan,
                spec=self.plan.spec.model_copy(update={"scaling": scaling}),
                methods=(*self.plan.methods, *more.methods),
                cells=(*self.plan.cells, *more.cells),
            )
        return method.label

    def _complete(self, labels: Sequence[str], units: Set[str]) -> None:
        """Measure what these methods lack on some documents."""
        keys = {
            Item(cell, question).key
            for cell in self.plan.cells
            if cell.scaling in labels and wanted(cell, self.length, self.kind)
            for question in cell.questions
            if question.unit in units
        }
        part = replace(self.plan, only=keys)
        if next(part.left(measured(checked_samples(self.folder))), None) is not None:
            self.measure(part)


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the least loss, the first of equals; raise UserError for none."""
    found = min(trials, key=lambda trial: trial.score)
    if not math.isfinite(found.score):
        raise UserError(
            f"none of {counted(len(trials), 'trials')} has a number; samples.jsonl has the reasons."
        )
    return found
