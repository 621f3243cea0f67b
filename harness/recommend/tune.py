"""Search a method by CMA-ES on some documents, and compare what is found on those held out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import replacing
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.harness.recommend.measuring import Measure, Measurements
from ropewalk.harness.recommend.space import Space
from ropewalk.harness.reports.writing.sentences import at_most, counted, signed
from ropewalk.harness.reports.writing.tables import page
from ropewalk.harness.stats.paired import Difference, of_means, share
from ropewalk.harness.stats.selection import select_means
from ropewalk.harness.sweep.plan import Cell, Item, Key, Plan, with_methods
from ropewalk.tasks.types import Generate

SIGMA = 0.2  # of the first draws, in widths of the cube
Kind = Literal["targets", "answers"]
Samples = Mapping[Key, Mapping[str, Any]]
Losses = dict[str, tuple[float, int]]  # nats and targets, by document or trial


@dataclass(frozen=True)
class Trial:
    """One point that was tried: its number, the method there, and its score in nats per token."""

    number: int
    method: str
    score: float = math.inf  # of one that has no number


def search(
    space: Space, trials: int, seed: int, measure: Callable[[Sequence[Trial]], Sequence[Trial]]
) -> list[Trial]:
    """Return every trial, in order.

    Only the seed and the scores decide what is tried, so a search that continues from stored
    samples is the one that was not interrupted, bit for bit. ``measure`` takes the trials of one
    generation without scores and returns them with scores.
    """
    from cmaes import CMA

    size = max(2, len(space.start))  # CMA-ES needs two; the second then has no effect
    start = np.array([*space.start, *[0.5] * (size - len(space.start))])
    optimiser = CMA(start, SIGMA, bounds=np.array([[0.0, 1.0]] * size), seed=seed % 2**32)
    done: list[Trial] = []
    while len(done) < trials:
        points = [optimiser.ask() for _ in range(optimiser.population_size)]
        numbered = enumerate(points[: trials - len(done)], start=len(done) + 1)
        generation = measure([Trial(n, space.method(x.tolist(), n)) for n, x in numbered])
        done += generation
        if len(generation) == len(points):
            scores = [trial.score for trial in generation]
            optimiser.tell(list(zip(points, scores, strict=True)))
    return done


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the least loss, the first of equals; raise UserError for none."""
    best = min(trials, key=lambda trial: trial.score)
    if not math.isfinite(best.score):
        raise UserError(
            f"none of {counted(len(trials), 'trials')} has a number; samples.jsonl has the reasons."
        )
    return best


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


def kind_of(plan: Plan) -> Kind:
    """Return what is minimised; raise UserError for a task that gives no loss."""
    (task,) = plan.tasks
    requests = [request for cell in plan.cells for request in cell.questions]
    if any(request.metadata.get("protocol") == "overlapping" for request in requests):
        raise UserError(
            f"{task.label} reads across the ends of documents: what is held out would be searched "
            "too. Give another protocol."
        )
    if task.module.METRIC == "perplexity":
        return "targets"
    has_losses = getattr(task.module, "LOGPROB", False)
    if has_losses and not any(isinstance(request, Generate) for request in requests):
        return "answers"
    form = "; write form=argmax" if has_losses else ", as perplexity and passkey do"
    raise UserError(f"{task.label} gives no log-probability to search by{form}.")


def losses(cell: Cell, samples: Samples, names: Set[str], kind: Kind) -> Losses | None:
    """Return the losses of some documents; None where a sample has no number."""
    result: Losses = {}
    for request in cell.questions:
        if request.doc_id not in names:
            continue
        record = samples.get(Item(cell, request).key)
        if record is None or record["status"] != "ok":
            return None
        if kind == "answers":
            nats = -record["facts"]["logprob"]
            count = sum(part.length - part.start for part in request.model_requests)
        else:
            nats, count = record["value"], record["weight"]
        total = result.get(request.doc_id, (0.0, 0))
        result[request.doc_id] = total[0] + nats, total[1] + count
    return result


def mean_loss(of: Losses | None) -> float:
    """Return the mean loss in nats per target; infinite where it has no number."""
    counts = sum(count for _, count in of.values()) if of else 0
    return math.fsum(nats for nats, _ in of.values()) / counts if of and counts else math.inf


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

    def run(
        self, space: Space, trials: int, seed: int, report: Callable[[Sequence[Trial]], None]
    ) -> list[Trial]:
        """Measure the closed-form methods, then search; return all trials in order.

        ``report`` is given all trials so far after each generation.
        """
        self._measure_methods(self.closed, self.split.search)
        done: list[Trial] = []

        def measured(generation: Sequence[Trial]) -> list[Trial]:
            labels = [self._add(trial.method) for trial in generation]
            self._measure_methods([label for label in labels if label], self.split.search)
            scores = [
                mean_loss(self.losses(label, self.split.search)) if label else math.inf
                for label in labels
            ]
            scored = [replace(t, score=s) for t, s in zip(generation, scores, strict=True)]
            done.extend(scored)
            report(done)
            return scored

        return search(space, trials, seed, measured)

    def hold_out(self, trial: Trial) -> str:
        """Measure a trial and the closed-form methods on what is held out; return its label."""
        label = load("method", trial.method).label
        self._measure_methods([*self.closed, label], self.split.held)
        return label

    def losses(self, label: str, names: Set[str]) -> Losses | None:
        """Return a method's losses on some documents, None where it has no number."""
        (cell,) = [cell for cell in self.plan.cells if cell.scaling == label]
        return losses(cell, self.samples, names, self.kind)

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
        cells = [cell for cell in self.plan.cells if cell.scaling in labels]
        self.complete(
            {
                Item(cell, request).key
                for cell in cells
                for request in cell.questions
                if request.doc_id in names
            }
        )


@dataclass(frozen=True)
class Row:
    """One method: its losses in nats per target on both halves.

    ``less_best`` is its difference on the documents held out from the closed-form method that is
    best on those of the search, as a share; ``regret`` is how much worse than the best of all it is
    at most there (95 %). Both are None where they cannot be computed.
    """

    scaling: str
    search: float
    held: float
    less_best: Difference | None = None
    regret: float | None = None


def compare(tuning: Tuning, label: str) -> list[Row]:
    """Return the method of a trial, then the closed-form ones, the best on the search data first.

    A closed-form method that is the trial's is in its row alone.
    """
    names = [label, *(name for name in tuning.closed if name != label)]
    search = {name: mean_loss(tuning.losses(name, tuning.split.search)) for name in names}
    order = [label, *sorted(names[1:], key=search.__getitem__)]
    held = {name: tuning.losses(name, tuning.split.held) for name in order}
    numbers = {name: of for name in order if (of := held[name])}
    first = next(iter(numbers.values()), {})
    documents = [doc for doc, (_, count) in first.items() if count]
    costs = {name: np.array([of[doc][0] for doc in documents]) for name, of in numbers.items()}
    weights = np.array([float(first[doc][1]) for doc in documents])
    selection = select_means(np.stack([*costs.values()], axis=1), weights) if documents else None
    bounds = [share(bound) for bound in selection.regret] if selection else [None] * len(costs)
    regret = dict(zip(costs, bounds, strict=True))

    def less_best(name: str) -> Difference | None:
        if name == order[1] or not documents or not costs.keys() >= {name, order[1]}:
            return None
        nats = (costs[name] - costs[order[1]])[:, None]
        return of_means(nats, weights[:, None], relative=True)[0]

    return [
        Row(name, search[name], mean_loss(held[name]), less_best(name), regret.get(name))
        for name in order
    ]


def to_use(table: Sequence[Row]) -> Row:
    """Return the method to use, of the found one and the best closed-form one.

    The closed-form one is used unless the other is significantly better on what was held out. If
    nothing is compared, it is the one that has a number.
    """
    found, closed = table[:2]
    if found.less_best is None:
        return found if found.held < closed.held else closed
    return found if found.less_best.high is not None and found.less_best.high < 0 else closed


def display(table: Sequence[Row]) -> pd.DataFrame:
    """Return the table for people; the numbers are perplexities of the targets or answers."""
    return pd.DataFrame(
        {
            "scaling": row.scaling,
            "perplexity, search": perplexity(row.search),
            "held out": perplexity(row.held),
            f"less {table[1].scaling}, held out [95 %]": signed(
                row.less_best.value, row.less_best.low, row.less_best.high
            )
            if row.less_best
            else "",
        }
        for row in table
    )


def summary(tuning: Tuning, trial: Trial, table: Sequence[Row], trials: int) -> list[str]:
    """Say which method to use, then what was found and what it is worth on the held-out half."""
    found, best, use = table[0].less_best, table[1].scaling, to_use(table)
    units = "trials" if tuning.kind == "answers" else "documents"
    searched, held = (
        counted(len(half), units) for half in (tuning.split.search, tuning.split.held)
    )
    answer = f"Use {use.scaling}"
    if use.regret is not None:
        answer += (
            f": on the {held} held out, its perplexity is at most {at_most(use.regret)} above that "
            f"of the best of {len(table)} methods (95 %)"
        )
    text = [
        f"{answer}.",
        f"{trial.method} is the best of {counted(trials, 'points')}, number {trial.number}, on "
        f"{searched}.",
    ]
    if found is None:
        return [*text, f"It or {best} has no number on all of the {held} held out."]
    interval = "too few for an interval"
    if found.low is not None and found.high is not None:
        interval = "lower" if found.high < 0 else "higher" if found.low > 0 else "not significant"
    return [
        *text,
        f"On the {held} held out its perplexity differs by "
        f"{signed(found.value, found.low, found.high)} from that of {best}, the best closed-form "
        f"method besides ({interval}).",
    ]


def write(
    tuning: Tuning, trial: Trial, table: Sequence[Row], trials: int, sentences: Sequence[str]
) -> tuple[Path, Path]:
    """Write found.json, which ``--scaling`` reads, and the page; return their paths."""
    found, report = tuning.folder / "found.json", tuning.folder / "tune.md"
    record: dict[str, Any] = {"scaling": trial.method}
    if trial.method.endswith(".json"):
        record = json.loads(Path(trial.method).read_text(encoding="utf-8"))
    record |= {
        "model": tuning.plan.checkpoint.name,
        "length": tuning.length,
        "task": tuning.plan.tasks[0].label,
        "minimised": f"loss of the {tuning.kind}, nats each",
        "trials": trials,
        "search": table[0].search,
        "held_out": table[0].held,
    }
    with replacing(found) as new:
        new.write((json.dumps(record, indent=1) + "\n").encode())
    title = f"{tuning.plan.tasks[0].label} at {tuning.length} tokens"
    with replacing(report) as new:
        new.write(page([({title: display(table)}, sentences)]).encode())
    return found, report


def perplexity(nats: float) -> str:
    """Return a loss in nats per target as a perplexity of four digits."""
    if not math.isfinite(nats):
        return "no number"
    return f"{math.exp(min(nats, 700.0)):#.4g}".removesuffix(".")
