"""Search a method by CMA-ES on some documents, and compare what is found on those held out."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import replacing
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.harness.recommend.decision import MARKS, decision, difference, score
from ropewalk.harness.recommend.losses import Measurements
from ropewalk.harness.recommend.space import Space, closed_form, of_factors, of_options
from ropewalk.harness.reports._text import as_text, counted, folded, signed
from ropewalk.harness.reports._text import text as text_of
from ropewalk.harness.serve._export import how_to_serve
from ropewalk.harness.stats.cells import records as rows_of
from ropewalk.harness.stats.paired import Array, difference_columns, share
from ropewalk.harness.stats.selection import select_means
from ropewalk.harness.sweep.memory import estimate
from ropewalk.harness.sweep.notes import note_plan
from ropewalk.harness.sweep.plan import Backend, Item, Plan, make_plan, with_methods
from ropewalk.harness.sweep.record import records
from ropewalk.harness.sweep.spec import Spec
from ropewalk.tasks.types import Generate

log = logging.getLogger("ropewalk")
SIGMA = 0.2  # of the first draws, in widths of the cube


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        method: the best method of the search, or the file that holds its factors.
        scaling: the method to use, the found one or the best closed-form one.
        text: the decision on what was held out.
        table: one row per method: the one found, then the closed-form ones by their perplexity on
            the data of the ``search``. The other columns are of what was held out, as in a
            ``Recommendation``.
        next: what to type to serve the method to use.
        files: ``found.json``, which ``scaling`` reads, and the table.
    """

    method: str
    scaling: str
    text: str
    table: pd.DataFrame
    next: str
    folder: Path
    files: tuple[Path, ...]

    def __str__(self) -> str:
        lines = [*map(folded, self.text.splitlines()), "", as_text(display(self.table)), ""]
        return "\n".join([*lines, f"Files: {self.files[0]} {self.files[1]}", f"Next:  {self.next}"])


def search(
    space: Space, trials: int, seed: int, measure: Callable[[Sequence[str]], Sequence[float]]
) -> list[tuple[float, str]]:
    """Return the score and the method of every trial, in order.

    Only the seed and the scores decide what is tried, so a search that continues from stored
    samples is the one that was not interrupted, bit for bit. ``measure`` takes the methods of one
    generation and returns their scores.
    """
    from cmaes import CMA

    size = max(2, len(space.start))  # CMA-ES needs two; the second then has no effect
    start = np.array([*space.start, *[0.5] * (size - len(space.start))])
    optimiser = CMA(start, SIGMA, bounds=np.array([[0.0, 1.0]] * size), seed=seed % 2**32)
    done: list[tuple[float, str]] = []
    while len(done) < trials:
        points = [optimiser.ask() for _ in range(optimiser.population_size)]
        numbered = enumerate(points[: trials - len(done)], start=len(done) + 1)
        methods = [space.method(x.tolist(), number) for number, x in numbered]
        scores = measure(methods)
        done += zip(scores, methods, strict=True)
        if len(scores) == len(points):
            optimiser.tell(list(zip(points, scores, strict=True)))
    return done


class Search(Measurements):
    """A search of one method by one task at one length.

    Attributes:
        plan: the methods so far; at first the closed-form ones that the result is compared with.
        answers: whether the loss of the answers is minimised, not that of the targets.
        halves: the documents or trials that the search sees, and those held out.
    """

    def __init__(self, spec: Spec, backend: Backend, against: Sequence[Any]) -> None:
        """Plan the closed-form methods, split the documents, and lay out what is searched.

        Raises UserError as ``make_plan`` does, and for what cannot be searched.
        """
        given = str(spec.scaling[0])
        free = given.partition(":")[0] in ("spline", "channels")  # factors, not options
        methods = [*against, *([] if free else [closed_form(given)])]
        changes = {"scaling": tuple(dict.fromkeys(methods))}
        plan = make_plan(spec.model_copy(update=changes), opening=backend.open)
        folder = spec.out or Path("results") / f"tune-{plan.checkpoint.label}"
        note_plan(plan)
        records(plan, folder)  # another run's folder is an error, in a dry run too
        super().__init__(plan, folder, backend)
        self.rope, (self.length,) = plan.checkpoint.rope, plan.lengths
        self.space = (
            of_factors(given, self.rope, self.length, folder / "factors")
            if free
            else of_options(given, self.rope, self.length)
        )
        self.closed = [method.label for method in plan.methods]
        self.answers = minimises_answers(plan)
        self.halves = split(plan, spec.seed)

    def run(self, trials: int, *, dry_run: bool = False) -> Tuned | None:
        """Search, or continue the search, and return what is to use; None for a dry run."""
        (seen, held), kind = self.halves, "answers" if self.answers else "targets"
        units = "trials" if self.answers else "documents"
        label, closed = self.plan.tasks[0].label, len(self.closed)
        part = len(held) / (len(seen) + len(held))
        times = trials * (1 - part) + part + closed  # one method on all documents
        tokens = round(times * estimate(self.plan, set()).tokens / closed)
        log.info(
            f"Searching {self.space.text}. {counted(trials, 'trials')} and "
            f"{counted(closed, 'closed-form methods')} ({', '.join(self.closed)}) at "
            f"{self.length:,} tokens, by the loss of the {kind} of {label}, on "
            f"{counted(len(seen), units)}; {len(held)} held out. Cost: about {tokens:,} tokens, "
            f"less what {self.folder} has."
        )
        if dry_run:
            return None
        self._measure_methods(self.closed, seen)
        done: list[tuple[float, str]] = []

        def measure(methods: Sequence[str]) -> list[float]:
            labels = [self._add(method) for method in methods]
            self._measure_methods([label for label in labels if label], seen)
            scores = [self.mean(label) if label else math.inf for label in labels]
            done.extend(zip(scores, methods, strict=True))
            best, name = min(done)
            text = "no number" if math.isinf(best) else f"{exp(best):.4g}, {name}"
            log.info(f"{len(done)} of {counted(trials, 'trials')}; best: {text}")
            return scores

        search(self.space, trials, self.plan.spec.seed, measure)
        number = min(range(trials), key=lambda place: done[place][0])
        score, method = done[number]
        if not math.isfinite(score):
            raise UserError(
                f"none of {counted(trials, 'trials')} has a number; samples.jsonl has the reasons."
            )
        found = load("method", method).label
        self._measure_methods([*self.closed, found], held)
        use, table, verdict = self.compare(found, units)
        text = (
            f"On the {counted(len(held), units)} held out: {verdict}.\n`{method}` is the best of "
            f"{counted(trials, 'points')}, number {number + 1}, on {counted(len(seen), units)}."
        )
        record = json.dumps({"scaling": method})
        if method.endswith(".json"):
            record = Path(method).read_text(encoding="utf-8")
        files = self.folder / "found.json", self.folder / "tune.csv"
        for file, content in zip(files, (record, table.to_csv(index=False)), strict=True):
            with replacing(file) as new:
                new.write(content.encode())
        given = {one.label: str(one.given) for one in self.plan.methods} | {found: str(files[0])}
        following = how_to_serve(self.plan.spec, given[use], self.length)
        return Tuned(method, use, text, table, following, self.folder, files)

    def _add(self, given: str) -> str | None:
        """Add a method to the plan, and return its label; None for values that it rejects."""
        try:
            method = load("method", given)
            resolve(method, self.rope, self.length)
        except UserError:
            return None
        named = {one.label: one.given for one in self.plan.methods}
        if named.get(method.label, given) != given:
            raise UserError(f"{named[method.label]} and {given} have one name; rename the first.")
        if method.label not in named:
            more, spec = with_methods(self.plan, [given]), self.plan.spec
            self.plan = replace(
                self.plan,
                spec=spec.model_copy(update={"scaling": (*spec.scaling, given)}),
                methods=(*self.plan.methods, *more.methods),
                cells=(*self.plan.cells, *more.cells),
            )
        return method.label

    def _measure_methods(self, labels: Sequence[str], names: Set[str]) -> None:
        cells = [cell for cell in self.plan.cells if cell.scaling in labels]
        items = [Item(cell, request) for cell in cells for request in cell.questions]
        self.complete({item.key for item in items if item.question.doc_id in names})

    def nats(self, label: str, names: Set[str]) -> tuple[Array, Array] | None:
        """Return a method's loss and its targets on each of some documents, in one order.

        None where a sample has no number.
        """
        (cell,) = [cell for cell in self.plan.cells if cell.scaling == label]
        totals = {request.doc_id: np.zeros(2) for request in cell.questions}
        for request in cell.questions:
            if request.doc_id in names:
                sample = self.samples.get(Item(cell, request).key, {})
                if sample.get("status") != "ok":
                    return None
                loss, count = sample["value"], sample["weight"]
                if self.answers:
                    loss = -sample["facts"]["logprob"]
                    count = sum(part.length - part.start for part in request.model_requests)
                totals[request.doc_id] += loss, count
        table = np.array([total for total in totals.values() if total[1]])
        return (table[:, 0], table[:, 1]) if len(table) else None

    def mean(self, label: str) -> float:
        """Return a method's mean loss in the search, infinite where it has no number."""
        nats = self.nats(label, self.halves[0])
        return math.fsum(nats[0]) / float(nats[1].sum()) if nats else math.inf

    def compare(self, found: str, units: str) -> tuple[str, pd.DataFrame, str]:
        """Return the method to use, the table, and the decision on what was held out.

        The best closed-form method of the search is used, unless the one found is significantly
        better. A method that has no number there is not compared.
        """
        means = {name: self.mean(name) for name in (found, *self.closed)}
        names = [found, *sorted(means.keys() - {found}, key=lambda name: (means[name], name))]
        nats = {name: of for name in names if (of := self.nats(name, self.halves[1]))}
        rows: dict[str, Any] = {n: {"scaling": n, "search": exp(means[n])} for n in names}
        if not nats:
            raise UserError("no method has a number on what was held out; see samples.jsonl.")
        costs, weights = {name: of[0] for name, of in nats.items()}, nats[next(iter(nats))][1]
        use = next((name for name in names[1:] if name in costs), found)
        if use != found and found in costs:
            high = difference(costs[found] - costs[use], weights).high
            use = found if high is not None and high < 0 else use
        selection = select_means(np.stack([*costs.values()], axis=1), weights)
        for place, (name, cost) in enumerate(costs.items()):
            rows[name] |= score(cost, weights)
            rows[name] |= difference_columns("difference", difference(cost - costs[use], weights))
            rows[name]["regret"] = share(float(selection.regret[place])) if selection else None
        best = min(costs, key=lambda name: float(rows[name]["score"]))
        winner = selection is not None and selection.winner
        compared = [rows[name] for name in costs]
        verdict = decision(compared, use, best, winner=winner, unit=units)
        return use, pd.DataFrame(rows.values()), verdict


def minimises_answers(plan: Plan) -> bool:
    """Return whether a task has the loss of answers; raise UserError where it has no loss."""
    (task,) = plan.tasks
    requests = [request for cell in plan.cells for request in cell.questions]
    if any(request.metadata.get("protocol") == "overlapping" for request in requests):
        raise UserError(
            f"{task.label} reads across the ends of documents: what is held out would be searched "
            "too. Give another protocol."
        )
    if task.module.METRIC == "perplexity":
        return False
    has_losses = getattr(task.module, "LOGPROB", False)
    if not has_losses or any(isinstance(request, Generate) for request in requests):
        form = "; write form=argmax" if has_losses else ", as perplexity and passkey do"
        raise UserError(f"{task.label} gives no log-probability to search by{form}.")
    return True


def split(plan: Plan, seed: int) -> tuple[frozenset[str], frozenset[str]]:
    """Draw one of every two neighbours for the search; return these, and those held out."""
    names = list(dict.fromkeys(one.doc_id for cell in plan.cells for one in cell.questions))
    if len(names) < 2:
        raise UserError(
            f"tune needs two documents or more, to hold some out; {len(names)} has room for"
            f" {max(plan.lengths)} tokens."
        )
    draw = Random(seed)
    search = frozenset(draw.choice(names[at : at + 2]) for at in range(0, len(names) - 1, 2))
    return search, frozenset(names) - search


def exp(nats: float) -> float | None:
    """Return the perplexity of a mean loss, None where it has no number."""
    return math.exp(min(nats, 700.0)) if math.isfinite(nats) else None


def display(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of a search for people."""
    rows = rows_of(table)
    differences = [[row[f"difference{mark}"] for mark in MARKS] for row in rows]
    return pd.DataFrame(
        {
            "method": table["scaling"],
            "search": [_perplexity(row["search"]) for row in rows],
            "held out [95 %]": [_perplexity(row["score"], row["low"], row["high"]) for row in rows],
            "difference [95 %]": [signed(*ends) for ends in differences],
        }
    )


def _perplexity(score: float | None, low: float | None = None, high: float | None = None) -> str:
    status = "no number" if score is None else "ok"
    cell = {"score": score, "low": low, "high": high, "metric": "perplexity", "status": status}
    return text_of(cell)
