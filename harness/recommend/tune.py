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
from tabulate import tabulate

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import replacing
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.harness.recommend.decision import MARKS, columns, decision, difference, perplexity
from ropewalk.harness.recommend.losses import Measurements
from ropewalk.harness.recommend.space import Space, closed_form, is_free, of_factors, of_options
from ropewalk.harness.reports.writing.sentences import counted, signed
from ropewalk.harness.reports.writing.sentences import text as text_of
from ropewalk.harness.reports.writing.tables import page
from ropewalk.harness.runs.store import measured
from ropewalk.harness.serve._export import express
from ropewalk.harness.stats.cells import records as rows_of
from ropewalk.harness.stats.paired import share
from ropewalk.harness.stats.selection import select_means
from ropewalk.harness.sweep.backend import Backend
from ropewalk.harness.sweep.memory import estimate
from ropewalk.harness.sweep.notes import note_plan
from ropewalk.harness.sweep.plan import Item, Plan, make_plan, with_methods
from ropewalk.harness.sweep.record import records
from ropewalk.harness.sweep.spec import Spec
from ropewalk.tasks.types import Generate

log = logging.getLogger("ropewalk")
SIGMA = 0.2  # of the first draws, in widths of the cube
Nats = dict[str, tuple[float, int]]  # summed loss and targets, by document or trial


@dataclass(frozen=True)
class Trial:
    """One point that was tried: its number, the method there, and its score in nats per target."""

    number: int
    method: str
    score: float = math.inf  # of one that has no number


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
        files: ``found.json``, which ``scaling`` reads, and the page.
    """

    method: str
    scaling: str
    text: str
    table: pd.DataFrame
    next: str
    folder: Path
    files: tuple[Path, ...]

    def __str__(self) -> str:
        table = tabulate(display(self.table).to_dict("list"), "keys", disable_numparse=True)
        files = " ".join(map(str, self.files))
        return f"{self.text}\n\n{table}\n\nFiles: {files}\nNext:  {self.next}"


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
        methods = [*against, *([] if is_free(given) else [closed_form(given)])]
        changes = {"scaling": tuple(dict.fromkeys(methods))}
        plan = make_plan(spec.model_copy(update=changes), elsewhere=backend.device)
        folder = spec.out or Path("results") / f"tune-{plan.checkpoint.label}"
        note_plan(plan)
        records(plan, folder)  # another run's folder is an error, in a dry run too
        super().__init__(plan, folder, backend)
        self.rope, (self.length,) = plan.checkpoint.rope, plan.lengths
        self.space = (
            of_factors(given, self.rope, self.length, folder / "factors")
            if is_free(given)
            else of_options(given, self.rope, self.length)
        )
        self.closed = [method.label for method in plan.methods]
        self.answers = minimises_answers(plan)
        self.halves = split(plan, spec.seed)

    def run(self, trials: int, *, dry_run: bool = False) -> Tuned | None:
        """Search, or continue the search, and return what is to use; None for a dry run."""
        seen, held = self.halves
        units = "trials" if self.answers else "documents"
        self._note(trials, units)
        if dry_run:
            return None
        self._measure_methods(self.closed, seen)
        done: list[Trial] = []

        def measure(generation: Sequence[Trial]) -> list[Trial]:
            labels = [self._add(trial.method) for trial in generation]
            self._measure_methods([label for label in labels if label], seen)
            scores = [mean(self.nats(label, seen)) if label else math.inf for label in labels]
            done.extend(replace(t, score=s) for t, s in zip(generation, scores, strict=True))
            best = min(done, key=lambda trial: trial.score)
            score = f"{exp(best.score) or math.nan:.4g}"
            log.info(f"{len(done)} of {counted(trials, 'trials')}; best: {score}, {best.method}")
            return done[-len(generation) :]

        best = min(search(self.space, trials, self.plan.spec.seed, measure), key=lambda t: t.score)
        if not math.isfinite(best.score):
            raise UserError(
                f"none of {counted(trials, 'trials')} has a number; samples.jsonl has the reasons."
            )
        label = load("method", best.method).label
        self._measure_methods([*self.closed, label], held)
        use, table, verdict = self.compare(label, units)
        text = (
            f"On the {counted(len(held), units)} held out: {verdict}.\n`{best.method}` is the best "
            f"of {counted(trials, 'points')}, number {best.number}, on {counted(len(seen), units)}."
        )
        files = self._write(best, table, text)
        (given,) = (str(method.given) for method in self.plan.methods if method.label == use)
        given = str(files[0]) if use == label else given
        following = express(self.plan.spec, given, self.length).text
        return Tuned(best.method, use, text, table, following, self.folder, files)

    def _note(self, trials: int, units: str) -> None:
        """Say what is searched and how many tokens that takes, by those of the closed forms."""
        seen, held = map(len, self.halves)
        closed = len(self.closed)
        everything = estimate(self.plan, set()).tokens / closed  # of one method, on all documents
        each = sum(len(cell.questions) for cell in self.plan.cells) / closed
        begun = len(measured(self.samples.values())) / each
        share_held = held / (seen + held)
        times = max(0.0, trials * (1 - share_held) + share_held + closed - begun)
        log.info(
            f"Searching {self.space.text}. {counted(trials, 'trials')} and "
            f"{counted(closed, 'closed-form methods')} ({', '.join(self.closed)}) at "
            f"{self.length:,} tokens, by the loss of the {'answers' if self.answers else 'targets'}"
            f" of {self.plan.tasks[0].label}, on {counted(seen, units)}; {held} held out. "
            f"{'Left' if begun else 'Cost'}: about {round(everything * times):,} tokens. "
            f"Run folder: {self.folder}."
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

    def nats(self, label: str, names: Set[str]) -> Nats | None:
        """Return a method's loss on each of some documents; None where a sample has no number."""
        (cell,) = [cell for cell in self.plan.cells if cell.scaling == label]
        result: Nats = {}
        for request in cell.questions:
            if request.doc_id not in names:
                continue
            record = self.samples.get(Item(cell, request).key)
            if record is None or record["status"] != "ok":
                return None
            loss, count = record["value"], record["weight"]
            if self.answers:
                loss = -record["facts"]["logprob"]
                count = sum(part.length - part.start for part in request.model_requests)
            total = result.get(request.doc_id, (0.0, 0))
            result[request.doc_id] = total[0] + loss, total[1] + count
        return {doc: both for doc, both in result.items() if both[1]}

    def compare(self, found: str, units: str) -> tuple[str, pd.DataFrame, str]:
        """Return the method to use, the table, and the decision on what was held out.

        The best closed-form method of the search is used, unless the one found is significantly
        better. Where it has no number there, the one found is used.
        """
        seen, held = self.halves
        names = [found, *(name for name in self.closed if name != found)]
        losses = {name: mean(self.nats(name, seen)) for name in names}
        names[1:] = sorted(names[1:], key=losses.__getitem__)
        nats = {name: of for name in names if (of := self.nats(name, held))}
        first = next(iter(nats.values()), {})
        weights = np.array([count for _, count in first.values()], float)
        costs = {name: np.array([of[doc][0] for doc in first]) for name, of in nats.items()}
        use = next((name for name in names[1:] if name in costs), found)
        if names[1] in costs and found in costs:
            high = difference(costs[found] - costs[names[1]], weights).high
            use = found if high is not None and high < 0 else names[1]
        selection = select_means(np.stack([*costs.values()], axis=1), weights) if costs else None
        rows: list[dict[str, Any]] = [{"scaling": n, "search": exp(losses[n])} for n in names]
        for place, name in enumerate(costs):
            row = rows[names.index(name)]
            row |= perplexity(costs[name], weights)
            row |= columns("difference", difference(costs[name] - costs[use], weights))
            row["regret"] = share(float(selection.regret[place])) if selection else None
        table = pd.DataFrame(rows)
        if not costs:
            return use, table, "no method has a number"
        compared = [row for row in rows if row["scaling"] in costs]
        best = min(compared, key=lambda row: row["score"])["scaling"]
        winner = bool(selection and selection.winner)
        return use, table, decision(compared, use, best, winner=winner, unit=units)

    def _write(self, best: Trial, table: pd.DataFrame, text: str) -> tuple[Path, Path]:
        """Write found.json, which ``--scaling`` reads, and the page; return their paths."""
        task = self.plan.tasks[0].label
        record: dict[str, Any] = {"scaling": best.method}
        if best.method.endswith(".json"):
            record = json.loads(Path(best.method).read_text(encoding="utf-8"))
        record |= {"model": self.plan.checkpoint.name, "length": self.length, "task": task}
        title = f"{task} at {self.length} tokens"
        files = self.folder / "found.json", self.folder / "tune.md"
        contents = (
            json.dumps(record, indent=1),
            page([({title: display(table)}, text.splitlines())]),
        )
        for file, content in zip(files, contents, strict=True):
            with replacing(file) as new:
                new.write(f"{content}\n".encode())
        return files


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


def mean(nats: Nats | None) -> float:
    """Return the mean loss in nats per target; infinite where it has no number."""
    counts = sum(count for _, count in nats.values()) if nats else 0
    return math.fsum(loss for loss, _ in nats.values()) / counts if nats and counts else math.inf


def exp(nats: float) -> float | None:
    """Return the perplexity of a mean loss, None where it has no number."""
    return math.exp(min(nats, 700.0)) if math.isfinite(nats) else None


def display(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of a search for people."""
    rows = [{**row, "metric": "perplexity", "status": "ok"} for row in rows_of(table)]
    seen = [{**row, "score": row["search"], "low": None} for row in rows]
    differences = [[row[f"difference{mark}"] for mark in MARKS] for row in rows]
    return pd.DataFrame(
        {
            "method": table["scaling"],
            "search": list(map(text_of, seen)),
            "held out [95 %]": list(map(text_of, rows)),
            "difference [95 %]": [signed(*ends) for ends in differences],
        }
    )
