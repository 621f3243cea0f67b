"""Search a method by CMA-ES on some documents, and compare what is found on those held out."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.harness.recommend.answer import Answer, columns_of, decision
from ropewalk.harness.recommend.candidates import PERPLEXITY
from ropewalk.harness.recommend.losses import Measurements
from ropewalk.harness.recommend.space import Space, closed_form, of_factors, of_options
from ropewalk.harness.reports._text import change, counted, text
from ropewalk.harness.reports._write import save
from ropewalk.harness.serve._export import how_to_serve
from ropewalk.harness.stats.cells import records as rows_of
from ropewalk.harness.stats.measure import Units, difference
from ropewalk.harness.stats.selection import select
from ropewalk.harness.sweep.memory import estimate
from ropewalk.harness.sweep.plan import Backend, Item, Plan, make_plan, with_methods
from ropewalk.harness.sweep.spec import Spec
from ropewalk.tasks.types import Generate

log = logging.getLogger("ropewalk")
SIGMA = 0.2  # of the first draws, in widths of the cube


@dataclass(frozen=True)
class Tuned(Answer):
    """The result of a search.

    The first row of the table is the method that was found, the others are the closed-form ones by
    their perplexity on the data of the ``search``. The other columns are of what was held out, as
    in a ``Recommendation``. The first file is ``found.json``, which ``scaling`` reads.

    Attributes:
        method: the best method of the search, or the file that holds its factors.
    """

    method: str

    def display(self) -> dict[str, pd.DataFrame]:
        """Return the table for people."""
        rows = [{**row, "status": "ok" if row["n"] else "no number"} for row in rows_of(self.table)]
        return {"": pd.DataFrame({
            "method": self.table["scaling"],
            "search": [_shown(row["search"]) for row in rows],
            "held out [95 %]": [text(row) for row in rows],
            "difference [95 %]": [change({**row, "relative": True}, "difference") for row in rows],
        })}  # fmt: skip


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
        best, name = min(done, key=itemgetter(0))
        found = f"best: {_shown(exp(best))}, {name}" if math.isfinite(best) else "no number yet"
        log.info(f"{len(done)} of {counted(trials, 'trials')}; {found}")
        if len(scores) == len(points):
            optimiser.tell(list(zip(points, scores, strict=True)))
    return done


class Search(Measurements):
    """A search of one method by one task at one length.

    Attributes:
        plan: the methods so far; at first the closed-form ones that the result is compared with.
        answers: whether the loss of the answers is minimised, not that of the targets.
        nouns: what is counted: documents, or trials.
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
        super().__init__(plan, "tune", backend)
        self.rope, (self.length,) = plan.checkpoint.rope, plan.lengths
        self.space = (
            of_factors(given, self.rope, self.length, self.folder / "factors")
            if free
            else of_options(given, self.rope, self.length)
        )
        self.closed = [method.label for method in plan.methods]
        self.answers = minimises_answers(plan)
        self.nouns = "trials" if self.answers else "documents"
        self.halves = split(plan, spec.seed)

    def run(self, trials: int, *, dry_run: bool = False) -> Tuned | None:
        """Search, or continue the search, and return what is to use; None for a dry run."""
        (seen, held), kind = self.halves, "answers" if self.answers else "targets"
        label, closed = self.plan.tasks[0].label, len(self.closed)
        part = len(held) / (len(seen) + len(held))
        times = trials * (1 - part) + part + closed  # one method on all documents
        tokens = round(times * estimate(self.plan, set()).tokens / closed)
        log.info(
            f"Searching {self.space.text}. {counted(trials, 'trials')} and "
            f"{counted(closed, 'closed-form methods')} ({', '.join(self.closed)}) at "
            f"{self.length:,} tokens, by the loss of the {kind} of {label}, on "
            f"{counted(len(seen), self.nouns)}; {len(held)} held out. Cost: about {tokens:,} "
            f"tokens, less what {self.folder} has."
        )
        if dry_run:
            return None
        self._measure_methods(self.closed, seen)

        def measure(methods: Sequence[str]) -> list[float]:
            labels = [self._add(method) for method in methods]
            self._measure_methods([label for label in labels if label], seen)
            return [self.mean(label) if label else math.inf for label in labels]

        done = search(self.space, trials, self.plan.spec.seed, measure)
        best = min(done, key=itemgetter(0))  # the first of equal ones
        number, (loss, method) = done.index(best) + 1, best
        if not math.isfinite(loss):
            raise UserError(
                f"none of {counted(trials, 'trials')} has a number; samples.jsonl has the reasons."
            )
        found = load("method", method).label
        self._measure_methods([*self.closed, found], held)
        use, table, verdict = self.compare(found)
        factors = method.endswith(".json")
        record = Path(method).read_bytes() if factors else json.dumps({"scaling": method}).encode()
        contents = {"found.json": record, "tune.csv": table.to_csv(index=False).encode()}
        files = save(contents, self.folder)
        given = {one.label: str(one.given) for one in self.plan.methods} | {found: str(files[0])}
        return Tuned(
            scaling=use,
            text=f"On the {counted(len(held), self.nouns)} held out: {verdict}.\n"
            f"`{method}` is the best of {counted(trials, 'points')}, number {number}, on "
            f"{counted(len(seen), self.nouns)}.",
            table=table,
            next=how_to_serve(self.plan.spec, given[use], self.length),
            folder=self.folder,
            files=tuple(files),
            method=method,
        )

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

    def units(self, label: str, names: Set[str]) -> Units | None:
        """Return a method's loss and its targets on each of some documents, in one order.

        None where a sample has no number.
        """
        (cell,) = [cell for cell in self.plan.cells if cell.scaling == label]
        totals: Units = {}
        for request in cell.questions:
            if request.doc_id in names:
                sample = self.samples.get(Item(cell, request).key, {})
                if sample.get("status") != "ok":
                    return None
                loss, count = sample["value"], sample["weight"]
                if self.answers:
                    loss = -sample["facts"]["logprob"]
                    count = sum(part.length - part.start for part in request.model_requests)
                before = totals.get(request.doc_id, (0.0, 0.0))
                totals[request.doc_id] = before[0] + loss, before[1] + count
        return {name: total for name, total in totals.items() if total[1]} or None

    def mean(self, label: str) -> float:
        """Return a method's mean loss in the search, infinite where it has no number."""
        units = self.units(label, self.halves[0]) or {"": (math.inf, 1.0)}
        losses, counts = zip(*units.values(), strict=True)
        return float(math.fsum(losses) / sum(counts))

    def compare(self, found: str) -> tuple[str, pd.DataFrame, str]:
        """Return the method to use, the table, and the decision on what was held out.

        The best closed-form method of the search is used, unless the one found is significantly
        better. A method that has no number there is not compared.
        """
        means = {name: self.mean(name) for name in (found, *self.closed)}
        names = [found, *sorted(means.keys() - {found}, key=lambda name: (means[name], name))]
        of = {name: held for name in names if (held := self.units(name, self.halves[1]))}
        if not of:
            raise UserError("no method has a number on what was held out; see samples.jsonl.")
        use = next((name for name in names[1:] if name in of), found)
        if found in of:
            lead = difference(of[found], of[use], PERPLEXITY)
            use = found if lead and lead.high is not None and lead.high < 0 else use
        selection = select([*of.values()], PERPLEXITY)
        regrets = selection.regret.tolist() if selection else [None] * len(of)
        rows: dict[str, dict[str, Any]] = {
            name: {"scaling": name, "metric": PERPLEXITY.metric, "search": exp(means[name])}
            for name in names
        }
        for (name, held), regret in zip(of.items(), regrets, strict=True):
            rows[name] |= columns_of(held, of[use], PERPLEXITY)
            rows[name]["regret"] = None if regret is None else PERPLEXITY.shown(regret)
        winner = [*of][selection.best] if selection and selection.winner else ""
        verdict = decision([rows[name] for name in of], use, winner, PERPLEXITY, unit=self.nouns)
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


def _shown(perplexity: float | None) -> str:
    status = "no number" if perplexity is None else "ok"
    cell = {"score": perplexity, "low": None, "high": None, "status": status}
    return text({**cell, "metric": PERPLEXITY.metric})
