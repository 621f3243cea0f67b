"""Search a method by CMA-ES on some documents, and compare what is found on those held out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.errors import UserError
from harness.files import replacing
from harness.methods.resolve import depends_on_length, resolve
from harness.plugins import load
from harness.reports.writing.sentences import are, at_most, counted, listed, signed
from harness.reports.writing.tables import page
from harness.select.measuring import Measure, Measurements
from harness.select.space import Space
from harness.stats.key_tokens import DROP, MOST, Rule
from harness.stats.paired import Difference, of_means, share
from harness.stats.selection import select_means
from harness.sweep.plan import Cell, Item, Key, Plan, with_methods
from tasks.types import Generate

SIGMA = 0.2  # of the first draws, in widths of the cube
EVALUATOR = "none"  # whose losses say which tokens are key
FOUND, REPORT = "found.json", "tune.md"
METRICS = {
    "targets": "perplexity",
    "key tokens": "perplexity of key tokens",
    "answers": "perplexity of the answers",
}
Kind = Literal["targets", "key tokens", "answers"]
Samples = Mapping[Key, Mapping[str, Any]]
Losses = dict[str, tuple[float, int]]  # nats and targets, by document or trial
Masks = dict[tuple[str, Any], NDArray[np.bool_]]  # which targets are key, by document and window


@dataclass(frozen=True)
class Trial:
    """One point that was tried: its number, the method there, and its score in nats per token."""

    number: int
    method: str
    score: float = math.inf  # of one that has no number


def check_installed() -> None:
    """Raise UserError where the optimiser is not installed, before anything is measured."""
    if find_spec("cmaes") is None:
        raise UserError("tune needs the package cmaes: pip install 'ropewalk[tune]'.")


def search(
    space: Space, trials: int, seed: int, measure: Callable[[Sequence[Trial]], Sequence[Trial]]
) -> list[Trial]:
    """Return every trial, in order.

    Only the seed and the scores decide what is tried, so a search that continues from stored scores
    is the one that was not interrupted, bit for bit. ``measure`` takes the trials of one generation
    without scores and returns them with scores.
    """
    from cmaes import CMA

    size = max(2, len(space.start))  # CMA-ES needs two; the second then has no effect
    start = np.array([*space.start, *[0.5] * (size - len(space.start))])
    cube = np.array([[0.0, 1.0]] * size)
    optimiser = CMA(start, SIGMA, bounds=cube, seed=seed % 2**32)
    done: list[Trial] = []
    while len(done) < trials:
        points = [optimiser.ask() for _ in range(optimiser.population_size)]
        generation = measure(
            [
                Trial(number, space.method(x.tolist(), number))
                for number, x in enumerate(points[: trials - len(done)], start=len(done) + 1)
            ]
        )
        done += generation
        if len(generation) == len(points):
            scores = [trial.score for trial in generation]
            optimiser.tell(list(zip(points, scores, strict=True)))
    return done


@dataclass(frozen=True)
class Split:
    """The documents, or trials of a task, that the search sees, and those held out."""

    search: frozenset[str]
    held: frozenset[str]

    @classmethod
    def of(cls, plan: Plan, seed: int) -> Split:
        """Draw one of every two neighbours for the search; raise UserError where there is one."""
        names = list(dict.fromkeys(one.doc_id for cell in plan.cells for one in cell.questions))
        if len(names) < 2:
            raise UserError(
                f"tune needs two documents or more, to hold some out; {len(names)} has room for"
                f" {max(plan.lengths)} tokens."
            )
        draw = Random(seed)
        pairs = [names[at : at + 2] for at in range(0, len(names) - 1, 2)]
        search = frozenset(draw.choice(pair) for pair in pairs)
        return cls(search, frozenset(names) - search)


def kind_of(plan: Plan, *, key_tokens: bool) -> Kind:
    """Return what is minimised; raise UserError for a task that gives no loss."""
    (task,) = plan.tasks
    requests = [request for cell in plan.cells for request in cell.questions]
    protocols = {request.metadata.get("protocol") for request in requests}
    perplexity = task.module.METRIC == "perplexity"
    if key_tokens and not (perplexity and protocols == {"tail"}):
        raise UserError(
            f"--key-tokens needs perplexity by the protocol tail, the task is {task.label}."
        )
    if "overlap" in protocols:
        raise UserError(
            f"{task.label} reads across the ends of documents: what is held out would be searched "
            "too. Give another protocol."
        )
    if perplexity:
        return "key tokens" if key_tokens else "targets"
    has_losses = "logprob" in getattr(task.module, "FACTS", {})
    if has_losses and not any(isinstance(request, Generate) for request in requests):
        return "answers"
    form = "; write form=argmax" if has_losses else ", as perplexity and passkey do"
    raise UserError(f"{task.label} gives no log-probability to search by{form}.")


def losses(
    cell: Cell, samples: Samples, names: Set[str], kind: Kind, masks: Masks
) -> Losses | None:
    """Return the losses of some documents; None where a sample, or its mask, has no number."""
    result: Losses = {}
    for request in cell.questions:
        if request.doc_id not in names:
            continue
        record = samples.get(Item(cell, request).key)
        if record is None or record["status"] != "ok":
            return None
        if kind == "key tokens":
            mask = masks.get((request.doc_id, request.metadata.get("window")))
            if mask is None:  # the evaluator has no losses there
                return None
            each = np.array(record["facts"]["losses"])
            nats, count = float(each[mask].sum()), int(mask.sum())
        elif kind == "answers":
            nats = -record["facts"]["logprob"]
            count = sum(part.length - part.start for part in request.model_requests)
        else:
            nats, count = record["value"], record["weight"]
        total = result.get(request.doc_id, (0.0, 0))
        result[request.doc_id] = total[0] + nats, total[1] + count
    return result


def key_masks(plan: Plan, samples: Samples, split: Split) -> Masks:
    """Return which targets are key: those that the evaluator's longer context makes clear.

    Raises UserError if one of the halves has no key target: its search would end without a number.
    """
    inside = [length for length in plan.lengths if length <= plan.checkpoint.rope.trained_length]
    rule = Rule(EVALUATOR, min(inside), max(inside), DROP, MOST)
    by_length: dict[int, dict[tuple[str, Any], NDArray[np.float64]]] = {
        cell.length: {
            (one.doc_id, one.metadata.get("window")): np.array(record["facts"]["losses"])
            for one in cell.questions
            if (record := samples.get(Item(cell, one).key)) and record["status"] == "ok"
        }
        for cell in plan.cells
        if cell.scaling == EVALUATOR
    }
    short, long = by_length[rule.short], by_length[rule.long]
    masks = {at: rule.keys(short[at], long[at]) for at in short if at in long}
    for half, names in (("of the search", split.search), ("held out", split.held)):
        if not any(mask.any() for (name, _), mask in masks.items() if name in names):
            raise UserError(
                f"no target is a key token on the documents {half}; give more documents, or a "
                "larger tail."
            )
    return masks


def score(one: Losses | None) -> float:
    """Return the mean loss in nats per target; infinite where it has no number."""
    counts = sum(count for _, count in one.values()) if one else 0
    return math.fsum(nats for nats, _ in one.values()) / counts if one and counts else math.inf


def regrets(every: Mapping[str, Losses]) -> dict[str, float]:
    """Return how much worse each method is at most than the best of all, as a share (95 %).

    Empty for fewer than 3 documents with targets.
    """
    first = next(iter(every.values()), {})
    documents = [name for name, (_, count) in first.items() if count]
    costs = np.array([[one[name][0] for one in every.values()] for name in documents])
    weights = np.array([float(first[name][1]) for name in documents])
    selection = select_means(costs, weights) if documents else None
    if selection is None:
        return {}
    return dict(zip(every, map(share, selection.regret.tolist()), strict=True))


def difference(one: Losses | None, other: Losses | None) -> Difference | None:
    """Return the difference, document by document, as a share of the other's perplexity."""
    if not one or not other:
        return None
    names = [name for name in one if one[name][1]]
    nats = np.array([[one[name][0] - other[name][0]] for name in names])
    weights = np.array([[float(one[name][1])] for name in names])
    return of_means(nats, weights, relative=True)[0]


class Tuning(Measurements):
    """A search under way: its run folder, and the plan with every method so far.

    The plan it begins with has the closed-form methods that the result is compared with.
    """

    def __init__(
        self, plan: Plan, folder: Path, length: int, kind: Kind, split: Split, measure: Measure
    ) -> None:
        super().__init__(plan, folder, measure)
        self.length, self.kind, self.split = length, kind, split
        self.closed = [method.label for method in plan.methods]
        self.masks: Masks = {}

    def run(
        self, space: Space, trials: int, seed: int, report: Callable[[Sequence[Trial]], None]
    ) -> list[Trial]:
        """Measure the closed-form methods, then search; return all trials in order.

        ``report`` is given all trials so far after each generation.
        """
        self._measure_methods(self.closed, self.split.search)
        if self.kind == "key tokens":
            self._measure_methods([EVALUATOR], self.split.held)
            self.masks = key_masks(self.plan, self.samples, self.split)
        done: list[Trial] = []

        def measured(generation: Sequence[Trial]) -> list[Trial]:
            labels = [self._add(trial.method) for trial in generation]
            self._measure_methods([label for label in labels if label], self.split.search)
            scored = [
                replace(
                    trial, score=score(self.losses(label, self.split.search) if label else None)
                )
                for trial, label in zip(generation, labels, strict=True)
            ]
            done.extend(scored)
            report(done)
            return scored

        return search(space, trials, seed, measured)

    def hold_out(self, trial: Trial) -> str:
        """Measure a trial and the closed-form methods on the documents held out.

        Returns the trial's label.
        """
        label = load("method", trial.method).label
        self._measure_methods([*self.closed, label], self.split.held)
        return label

    def losses(self, label: str, names: Set[str]) -> Losses | None:
        """Return a method's losses on some documents, None where it has no number."""
        (cell,) = [c for c in self.plan.cells if (c.scaling, c.length) == (label, self.length)]
        return losses(cell, self.samples, names, self.kind, self.masks)

    def _add(self, given: str) -> str | None:
        """Add a method to the plan, and return its label; None for values that it rejects."""
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

    def _measure_methods(self, labels: Sequence[str], names: Set[str]) -> None:
        """Measure what these methods have not yet measured on some documents.

        Key tokens also need the evaluator at the other lengths.
        """
        lengths = {
            label: set(self.plan.lengths)
            if self.kind == "key tokens" and label == EVALUATOR
            else {self.length}
            for label in labels
        }
        self.complete(
            {
                Item(cell, request).key
                for cell in self.plan.cells
                if cell.length in lengths.get(cell.scaling, ())
                for request in cell.questions
                if request.doc_id in names
            }
        )


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the least loss, the first of equals; raise UserError for none."""
    best = min(trials, key=lambda trial: trial.score)
    if not math.isfinite(best.score):
        raise UserError(
            f"none of {counted(len(trials), 'trials')} has a number; samples.jsonl has the reasons."
        )
    return best


@dataclass(frozen=True)
class Row:
    """One method: its losses in nats per target on both halves, and its differences there.

    ``regret`` is how much worse than the best of all it is at most on the documents held out.
    """

    scaling: str
    search: float
    held: float
    on_search: Difference | None = None
    on_held: Difference | None = None
    regret: float | None = None


def compare(tuning: Tuning, label: str) -> list[Row]:
    """Return the method of a trial, then the closed-form ones, the best on the search data first.

    The differences are from that best one, and None for itself and where one has no number. A
    closed-form method that is the trial's is in its row alone.
    """
    names = [label, *(name for name in tuning.closed if name != label)]
    search = {name: tuning.losses(name, tuning.split.search) for name in names}
    held = {name: tuning.losses(name, tuning.split.held) for name in names}
    order = [label, *sorted(names[1:], key=lambda name: score(search[name]))]
    bounds = regrets({name: one for name in order if (one := held[name])})

    def row(name: str) -> Row:
        halves = () if name == order[1] else (search, held)
        differences = [difference(half[name], half[order[1]]) for half in halves]
        first, second = differences or (None, None)
        return Row(name, score(search[name]), score(held[name]), first, second, bounds.get(name))

    return [row(name) for name in order]


def to_use(table: Sequence[Row]) -> Row:
    """Return the method to use, of the found one and the best closed-form one.

    The closed-form one is used unless the other is significantly better on what was held out. If
    nothing is compared, it is the one that has a number.
    """
    found, closed = table[:2]
    if found.on_held is None or found.on_search is None:
        return found if found.held < closed.held else closed
    high = found.on_held.high
    return found if high is not None and high < 0 else closed


def write_found(tuning: Tuning, trial: Trial, table: Sequence[Row], trials: int) -> Path:
    """Write found.json, which ``--scaling`` reads, and return its path."""
    path, inner = tuning.folder / FOUND, Path(trial.method)
    record: dict[str, Any] = {"scaling": trial.method}
    if inner.suffix == ".json":
        record = json.loads(inner.read_text(encoding="utf-8"))
    record |= {
        "model": tuning.plan.checkpoint.name,
        "length": tuning.length,
        "task": tuning.plan.tasks[0].label,
        "minimised": f"loss of the {tuning.kind}, nats each",
        "trials": trials,
        "search": table[0].search,
        "held_out": table[0].held,
    }
    with replacing(path) as new:
        new.write((json.dumps(record, indent=1) + "\n").encode())
    return path


def display(tuning: Tuning, table: Sequence[Row]) -> pd.DataFrame:
    """Return the table for people."""
    best, metric = table[1].scaling, METRICS[tuning.kind]
    return pd.DataFrame(
        {
            "scaling": row.scaling,
            f"{metric}, search": perplexity(row.search),
            "held out": perplexity(row.held),
            f"less {best}, search": signed(row.on_search.value) if row.on_search else "",
            f"less {best}, held out [95 %]": _with_interval(row.on_held) if row.on_held else "",
        }
        for row in table
    )


def summary(tuning: Tuning, trial: Trial, table: Sequence[Row], trials: int) -> list[str]:
    """Say what was found, and whether it holds on the documents held out."""
    first, best = table[0], table[1].scaling
    other = "other " * (first.scaling in tuning.closed)
    units = "trials" if tuning.kind == "answers" else "documents"
    count = len(tuning.split.held)
    searched, held = counted(len(tuning.split.search), units), counted(count, units)
    tried = f"{counted(trials, 'points')}, number {trial.number}"
    text = [f"{trial.method} is the best of {tried}, on {searched}."]
    if first.on_held is None or first.on_search is None:
        return [*text, f"It or {best} has no number on all of them: nothing is compared."]
    gain, gain_held = first.on_search.value, first.on_held.value
    low, high = first.on_held.low, first.on_held.high
    text.append(
        f"There its perplexity differs by {signed(gain)} from that of {best}, the best {other}"
        f"closed-form method; on the {held} held out by {_with_interval(first.on_held)}. The gap "
        f"between the two is {100 * abs(gain_held - gain):.1f} percentage points."
    )
    if low is None or high is None:
        return [*text, f"Use {best}: {held} held out {are(count)} too few for an interval."]
    use = to_use(table)
    verdict = "lower" if high < 0 else "higher" if low > 0 else "not significantly different"
    text.append(f"Held out, the found method is {verdict}: use {use.scaling}.")
    if use.regret is not None:
        text[-1] += (
            f" On what was held out its perplexity is at most {at_most(use.regret)} "
            f"above that of the best of {len(table)} methods (95 %)."
        )
    return text


def write_page(tuning: Tuning, table: Sequence[Row], sentences: Sequence[str]) -> Path:
    """Write the page with the sentences and the table, and return its path."""
    path = tuning.folder / REPORT
    title = f"{tuning.plan.tasks[0].label} at {tuning.length} tokens"
    with replacing(path) as new:
        new.write(page([({title: display(tuning, table)}, sentences)]).encode())
    return path


def cost_notes(methods: Sequence[str], tuning: Tuning) -> list[str]:
    """Say of which methods a run inside the window does not show the cost that a server pays."""
    rope, length = tuning.plan.checkpoint.rope, tuning.length
    window, changing = rope.trained_length, []
    for given in methods if length > window else []:
        method = load("method", given)
        far, near = (resolve(method, rope, at) for at in (length, window))
        if depends_on_length(far, near, window):
            changing.append(method.label)
    if not changing:
        return []
    return [
        f"It is not that of {listed(changing)} as a server keeps it: measured inside the window is "
        f"the form for {window:,} tokens, served for all lengths that for {length:,}."
    ]


def perplexity(nats: float) -> str:
    """Return a loss in nats per target as a perplexity of four digits."""
    if not math.isfinite(nats):
        return "no number"
    return f"{math.exp(min(nats, 700.0)):#.4g}".removesuffix(".")


def _with_interval(one: Difference) -> str:
    return signed(one.value, one.low, one.high)
