"""The candidates of a race, and what ``recommend`` and ``tune`` measure of a run."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.methods.resolve import depends_on_length
from harness.plugins import module_of, names, parameters
from harness.runs.store import checked_samples, measured
from harness.select.race import CUT, FAR, NEAR, Array, Budget, Need
from harness.serve._export import export
from harness.stats.selection import plainness
from harness.sweep.plan import Item, Key, Plan

OWN = "none"  # the model without scaling, against which in-window costs are measured
SHIPPED = "native"  # the checkpoint's own scaling
# Searched or calibrated on the model: without that they are an error, or another method.
LEFT_OUT = (SHIPPED, "longrope", "ms_poe", "dpe", "lampe")
ADDED = ("log_n", "temperature", "info_scale")  # used on top of another method: here YaRN
CODE = "hf-code"  # the engine that reads any method, by a modelling file in transformers
# The order in which a budget too small for all takes the candidates: the plainest and most used
# first, then the others alphabetically.
ORDER = (OWN, SHIPPED, "yarn", "ntk", "pi", "ntk_by_parts", "llama3", "dynamic_ntk", "self_extend")


def default_candidates(stretch: float, *, ships: bool = False) -> tuple[str, ...]:
    """Return every training-free method with its usual options, at the fixed factor of a target.

    A server has one factor for all lengths. Methods whose authors train with them are left out:
    their files have TRAINING. What a checkpoint ``ships`` is a candidate: it is the unchanged
    model.
    """
    factor = f"factor={stretch:g}"
    candidates = {OWN: OWN} | ({SHIPPED: SHIPPED} if ships else {})
    for name in names("method"):
        module = module_of("method", name)[0]
        if name in (OWN, *LEFT_OUT) or hasattr(module, "TRAINING"):
            continue
        option = parameters(module, "method").get("factor")
        fixed = option is not None and option.default is None
        options = f"on=yarn:{factor}" if name in ADDED else factor if fixed else ""
        candidates[name] = f"{name}:{options}" if options else name
    first = [name for name in ORDER if name in candidates]
    return tuple(candidates[name] for name in dict.fromkeys([*first, *candidates]))


def coinciding(plan: Plan, labels: Iterable[str]) -> dict[str, list[str]]:
    """Return, under the plainest name of each, the methods that are the same at the target.

    A server keeps the form of the target for all lengths, so what a method does at other lengths
    does not matter; a name whose form changes with the length is still the last choice.
    """
    window, target = plan.lengths
    cells = {(cell.scaling, cell.length): cell for cell in plan.cells}
    groups: dict[str | None, list[str]] = {}
    for label in labels:
        groups.setdefault(cells[label, target].frequencies, []).append(label)

    def merit(label: str) -> tuple[bool, tuple[int, int, str]]:
        far, near = (cells[label, length].rotation for length in (target, window))
        return depends_on_length(far, near, window), plainness(label)

    return {min(same, key=merit): sorted(same, key=merit) for same in groups.values()}


def unserved(plan: Plan, labels: Iterable[str], to: str | None) -> dict[str, str]:
    """Return the methods that an engine cannot express at the target, and why.

    Without an engine these are the methods that none reads but transformers with a modelling file.
    """
    given = {method.label: method.given for method in plan.methods}
    target = plan.lengths[-1]
    cells = {cell.scaling: cell for cell in plan.cells if cell.length == target}
    reasons = {}
    for label in labels:
        rotation = cells[label].rotation
        if to is None:
            if rotation is not None and rotation.needs_code:
                reasons[label] = f"only --to {CODE} expresses it"
            continue
        changes = {"scaling": (given[label],), "length": (str(target),)}
        engine = "transformers" if to == CODE and not (rotation and rotation.needs_code) else to
        try:
            export(plan.spec.model_copy(update=changes), engine)
        except UserError as error:
            reasons[label] = str(error)
    return reasons


Measure = Callable[[Plan], Iterable[Mapping[str, Any]]]  # yields samples as they are stored
SLOWER = 1.15  # times what is expected: checks between the forwards, and their spread


def tasks(trained: int, target: int) -> tuple[str, str]:
    """Return the tasks of a race: all tokens beyond the window, and half of it inside."""
    return f"perplexity:tail={target - trained},slide=true", f"perplexity:tail={trained // 2}"


class Measurements:
    """The samples of a run folder, in memory, and measured where they are missing."""

    def __init__(self, plan: Plan, folder: Path, measure: Measure) -> None:
        self.plan, self.folder, self._measure = plan, folder, measure
        self.samples: dict[Key, Mapping[str, Any]] = dict(checked_samples(folder))

    def complete(self, keys: Set[Key]) -> None:
        """Measure those of these samples that are missing."""
        part = replace(self.plan, only=keys - measured(self.samples))
        if next(part.left(set()), None) is not None:
            for sample in self._measure(part):
                self.samples[sample["cell"], sample["question"]] = sample


class RaceField(Measurements):
    """The losses of the candidates of a race, by document.

    ``failed`` are the candidates that have no rotation; ``names`` are all others; ``order`` are the
    documents in the order in which they are measured. ``workers`` measure at the same time.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        measure: Measure,
        budget: Budget,
        workers: int = 1,
    ) -> None:
        super().__init__(plan, folder, measure)
        self.budget, self.workers = budget, workers
        self.window, self.target = plan.lengths
        far, near = (task.label for task in plan.tasks)
        where = {FAR: (far, self.target), NEAR: (near, self.window), CUT: (far, self.window)}
        cells = {(one.task, one.length, one.scaling): one for one in plan.cells}
        self.cells = {
            (kind, method.label): cells[*at, method.label]
            for kind, at in where.items()
            for method in plan.methods
        }
        self.order = list(dict.fromkeys(one.doc_id for one in self.cells[FAR, OWN].questions))
        Random(plan.spec.seed).shuffle(self.order)
        self.failed = {cell.scaling: cell.failed for cell in plan.cells if cell.failed is not None}
        self.names = [one.label for one in plan.methods if one.label not in self.failed]
        self.requested: dict[Key, tuple[str, int]] = {}  # the method and the length
        self.began = time.monotonic()
        self._keys: dict[tuple[str, str], list[list[Key]]] = {}

    def keys(self, kind: str, name: str, documents: int) -> list[list[Key]]:
        """Return the samples of a candidate on each of the first documents."""
        if (kind, name) not in self._keys:
            cell, by_document = self.cells[kind, name], defaultdict[str, list[Key]](list)
            for request in cell.questions:
                by_document[request.doc_id].append(Item(cell, request).key)
            self._keys[kind, name] = [by_document[document] for document in self.order]
        return self._keys[kind, name][:documents]

    def losses(self, kind: str, name: str, documents: int) -> Array:
        """Return the loss per token of each of the first documents."""
        each = []
        for keys in self.keys(kind, name, documents):
            records = [self.samples[key] for key in keys]
            nats = math.fsum(record["value"] for record in records)
            each.append(nats / sum(record["weight"] for record in records))
        return np.array(each)

    def unchanged(self, name: str) -> bool:
        """Return whether a candidate is the plain model inside the window."""
        return self.cells[NEAR, name].frequencies == self.cells[NEAR, OWN].frequencies

    def depends_on_length(self, name: str) -> bool:
        """Return whether a candidate's form changes with the length of the input."""
        near, far = self.cells[NEAR, name].rotation, self.cells[FAR, name].rotation
        return depends_on_length(far, near, self.window)

    def measure(self, needs: Iterable[Need]) -> dict[str, str]:
        """Measure what is missing; return the candidates that have no number, and why.

        Raises UserError if the plain model has no number inside the window.
        """
        needed = [(need, keys) for need in needs for keys in self.keys(*need)]
        self.requested = self._requests(need for need, _ in needed) | self.requested
        self.complete({key for _, keys in needed for key in keys})
        self.__dict__.pop("rates", None)
        failed = {}
        for (kind, name, _), keys in needed:
            records = [self.samples.get(key, {}) for key in keys]
            bad = next((one for one in records if one.get("status") != "ok"), None)
            if bad:
                failed[name] = str(bad.get("reason") or bad.get("status"))
                if (kind, name) == (NEAR, OWN):
                    raise UserError(
                        f"{self.plan.checkpoint.label} itself has no number at {self.window:,} "
                        f"tokens: {failed[name]}"
                    )
        return failed

    def _requests(self, needs: Iterable[Need]) -> dict[Key, tuple[str, int]]:
        """Return the method and the length of each sample."""
        return {
            key: (need[1], self.cells[need[:2]].length)
            for need in needs
            for keys in self.keys(*need)
            for key in keys
        }

    @property
    def forwards(self) -> float:
        """Return how many forwards were requested; shorter ones count by their tokens."""
        return sum(length for _, length in self.requested.values()) / self.target

    def grid(self, names: Iterable[str]) -> float:
        """Return how many forwards it takes to measure these candidates on every document."""
        changed = [name for name in names if not self.unchanged(name)]
        cells = [(FAR, name) for name in names] + [(NEAR, name) for name in [OWN, *changed]]
        return sum(
            len(keys) * self.cells[cell].length / self.target
            for cell in [*cells, (CUT, OWN)]
            for keys in self.keys(*cell, len(self.order))
        )

    def spent(self) -> float:
        """Return what was spent; samples of earlier sessions cost no time."""
        return time.monotonic() - self.began if self.budget.timed else self.forwards

    def seconds(self, keys: Iterable[Key]) -> float:
        """Return how long samples took."""
        return sum(float(self.samples.get(key, {}).get("seconds") or 0) for key in keys)

    def cost(self, needs: Iterable[Need]) -> float:
        """Return what it takes to measure what was not requested yet."""
        new = {k: at for k, at in self._requests(needs).items() if k not in self.requested}
        if not self.budget.timed:
            return sum(length for _, length in new.values()) / self.target
        known = measured(self.samples)
        return sum(self._rate(*at) * at[1] for key, at in new.items() if key not in known)

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
        totals = defaultdict[tuple[str, int], Array](lambda: np.zeros(2))
        for key, (name, length) in self.requested.items():
            if key not in warming.values() and (seconds := self.seconds([key])):
                for at in ((name, length), ("", length), (name, 0), ("", 0)):
                    totals[at] += seconds, length
        if totals:
            return {at: float(seconds / tokens) for at, (seconds, tokens) in totals.items()}
        return {}
