"""The candidates of a race, its budget, and the losses that ``recommend`` and ``tune`` measure."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.resolve import depends_on_length
from ropewalk.harness.plugins import module_of, names, parameters
from ropewalk.harness.runs.store import measured, read_samples
from ropewalk.harness.serve._export import export
from ropewalk.harness.stats.paired import Array
from ropewalk.harness.stats.selection import plainness
from ropewalk.harness.sweep.operations import costs, duration
from ropewalk.harness.sweep.plan import Batch, Item, Key, Plan

OWN = "none"  # the model without scaling, against which in-window costs are measured
SHIPPED = "native"  # the checkpoint's own scaling
# Searched or calibrated on the model: without that they are an error, or another method.
LEFT_OUT = (SHIPPED, "longrope", "ms_poe", "dpe", "lampe")
ADDED = ("log_n", "temperature", "info_scale")  # used on top of another method: here YaRN
CODE = "hf-code"  # the engine that reads any method, by a modelling file in transformers
# The order in which a budget that is too small for all takes the candidates: those that are known
# to work first, then the others alphabetically.
ORDER = (OWN, SHIPPED, "yarn", "ntk_by_parts", "mr_rope", "llama3", "ntk", "dynamic_ntk", "pi")


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
    length, reasons = plan.lengths[-1], {}
    rotations = {cell.scaling: cell.rotation for cell in plan.cells if cell.length == length}
    for label in labels:
        rotation, changes = rotations[label], {"scaling": (given[label],), "length": (str(length),)}
        coded = rotation is not None and rotation.needs_code
        if to is None and coded:
            reasons[label] = f"only --to {CODE} expresses it"
        elif to is not None:
            engine = "transformers" if to == CODE and not coded else to
            try:
                export(plan.spec.model_copy(update=changes), engine)
            except UserError as error:
                reasons[label] = str(error)
    return reasons


Measure = Callable[[Plan], Iterable[Mapping[str, Any]]]  # yields samples as they are stored


def tasks(trained: int, target: int) -> tuple[str, str]:
    """Return the tasks of a race: all tokens beyond the window, and half of it inside."""
    return f"perplexity:tail={target - trained},slide=true", f"perplexity:tail={trained // 2}"


class Measurements:
    """The samples of a run folder, in memory, and measured where they are missing."""

    def __init__(self, plan: Plan, folder: Path, measure: Measure) -> None:
        self.plan, self.folder, self._measure = plan, folder, measure
        self.samples: dict[Key, Mapping[str, Any]] = {**read_samples(folder)}

    def complete(self, keys: Set[Key]) -> None:
        """Measure those of these samples that are missing."""
        part = replace(self.plan, only=keys - measured(self.samples.values()))
        if next(part.left(set()), None) is not None:
            for sample in self._measure(part):
                self.samples[sample["cell"], sample["question"]] = sample


@dataclass(frozen=True)
class Budget:
    """The most that a race may take, in seconds or in forwards at the target length."""

    most: float = math.inf
    timed: bool = False

    def text(self, cost: float) -> str:
        """Return a part of the budget in words, rounded up."""
        if math.isinf(cost):
            return "no limit"
        return duration(math.ceil(cost)) if self.timed else f"{math.ceil(cost):,} forwards"


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


FAR, NEAR, CUT = "far", "near", "cut"  # at the target; inside the window; truncated to the window
Need = tuple[str, str, int]  # one of these, a candidate, and on how many documents
SLOWER = 1.15  # times the measured rate: what happens between the forwards, and their spread


class RaceData(Measurements):
    """The losses of the candidates of a race by document, and what it takes to measure them.

    That is counted in forwards of the target length, by their operations.

    Attributes:
        order: the documents in the order in which they are measured.
        failed: the candidates that have no rotation, and why; ``names`` are all others.
        requested: the samples of this race so far, each with its method.
        seconds: the seconds per forward that were measured, by method; "" is any method.
        workers: how many measure at the same time.
    """

    def __init__(self, plan: Plan, folder: Path, measure: Measure, workers: int = 1) -> None:
        super().__init__(plan, folder, measure)
        self.budget, self.workers, self.began = Budget(), workers, time.monotonic()
        self.window, self.target = plan.lengths
        far, near = (task.label for task in plan.tasks)
        kinds = {(far, self.target): FAR, (near, self.window): NEAR, (far, self.window): CUT}
        self.cells = {
            (kinds[cell.task, cell.length], cell.scaling): cell
            for cell in plan.cells
            if (cell.task, cell.length) in kinds
        }
        plain = self.cells[FAR, OWN]
        assert plain.rotation is not None
        one = Batch(plain.rotation, (Item(plain, plain.questions[0]),))
        self._whole = next(costs(plan.checkpoint, one)).total
        self.order = list(dict.fromkeys(one.doc_id for one in plain.questions))
        Random(plan.spec.seed).shuffle(self.order)
        self.failed = {cell.scaling: cell.failed for cell in plan.cells if cell.failed is not None}
        self.names = [one.label for one in plan.methods if one.label not in self.failed]
        self.requested: dict[Key, str] = {}
        self.seconds: dict[str, float] = {}
        self._sizes: dict[Key, float] = {}  # in forwards of the target length
        self._keys: dict[tuple[str, str], dict[str, list[Key]]] = {}

    def keys(self, kind: str, name: str, documents: int) -> list[list[Key]]:
        """Return the samples of a candidate on each of the first documents."""
        if (kind, name) not in self._keys:
            cell = self.cells[kind, name]
            assert cell.rotation is not None  # candidates without one are not measured
            items = tuple(Item(cell, request) for request in cell.questions)
            counts = costs(self.plan.checkpoint, Batch(cell.rotation, items))
            by_document: dict[str, list[Key]] = {document: [] for document in self.order}
            for item, cost in zip(items, counts, strict=True):
                by_document[item.question.doc_id].append(item.key)
                self._sizes[item.key] = cost.total / self._whole
            self._keys[kind, name] = by_document
        return [self._keys[kind, name][document] for document in self.order[:documents]]

    def losses(self, kind: str, name: str, documents: int) -> Array:
        """Return the loss per token of each of the first documents."""
        each = []
        for keys in self.keys(kind, name, documents):
            records = [self.samples[key] for key in keys]
            nats = math.fsum(record["value"] for record in records)
            each.append(nats / sum(record["weight"] for record in records))
        return np.array(each)

    def depends_on_length(self, name: str) -> bool:
        """Return whether a candidate's form changes with the length of the input."""
        near, far = self.cells[NEAR, name].rotation, self.cells[FAR, name].rotation
        return depends_on_length(far, near, self.window)

    def measure(self, needs: Iterable[Need]) -> dict[str, str]:
        """Measure what is missing; return the candidates that have no number, and why.

        Raises UserError if the plain model has no number inside the window, or on windows.
        """
        needs = list(needs)
        self.requested |= (wanted := self._wanted(needs))
        self.complete(wanted.keys())
        self._rate()
        failed = {}
        for kind, name, documents in needs:
            for key in (key for keys in self.keys(kind, name, documents) for key in keys):
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
        return {key: need[1] for need in needs for keys in self.keys(*need) for key in keys}

    def _rate(self) -> None:
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
        if self.budget.timed:
            return time.monotonic() - self.began
        return self.forwards()

    def cost(self, needs: Iterable[Need]) -> float:
        """Return how much of the budget it takes to measure what was not requested yet."""
        new = {key: name for key, name in self._wanted(needs).items() if key not in self.requested}
        if not self.budget.timed:
            return sum(self._sizes[key] for key in new)
        done, rate = measured(self.samples.values()), self.seconds.get("", 0.0)
        seconds = (
            self._sizes[key] * self.seconds.get(name, rate)
            for key, name in new.items()
            if key not in done
        )
        return sum(seconds) * SLOWER / self.workers
