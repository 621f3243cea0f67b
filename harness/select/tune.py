"""Search a cube by CMA-ES: ask, measure, tell; the same asks whenever the answers are the same."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
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
from harness.reports.writing.sentences import counted, listed, signed
from harness.reports.writing.tables import page
from harness.runs.schema import checked_samples
from harness.runs.store import measured
from harness.select.space import Space
from harness.stats.key_tokens import DROP, MOST, Rule
from harness.stats.paired import Difference, of_means, share
from harness.stats.selection import select_means
from harness.sweep.plan import Cell, Item, Key, Plan, with_methods
from tasks.types import Generate

SIGMA = 0.2  # of the first draws, in widths of the cube


@dataclass(frozen=True)
class Trial:
    """One point that was tried: its number, the method there, and its score in nats a token."""

    number: int
    method: str
    score: float  # infinite for one that has no number


def check_installed() -> None:
    """Raise UserError where the optimiser is not installed, before anything is measured."""
    if find_spec("cmaes") is None:
        raise UserError("tune needs the package cmaes: pip install 'ropewalk[tune]'.")


def search(
    space: Space, trials: int, seed: int, measure: Callable[[Sequence[Trial]], Sequence[Trial]]
) -> list[Trial]:
    """Return every trial, in order.

    Nothing but the seed and the scores decides what is tried, so a search that continues from
    stored scores is the one that was not interrupted, bit for bit. ``measure`` takes the trials of
    one generation without scores and returns them with.
    """
    from cmaes import CMA

    size = max(2, len(space.start))  # CMA-ES needs two; the second then has no effect
    start = np.array([*space.start, *[0.5] * (size - len(space.start))])
    cube = np.array([[0.0, 1.0]] * size)
    optimiser = CMA(start, SIGMA, bounds=cube, seed=seed % 2**32)
    done: list[Trial] = []
    while len(done) < trials:
        asked = [optimiser.ask() for _ in range(optimiser.population_size)]
        some = [
            Trial(number, space.method(x.tolist(), number), math.inf)
            for number, x in enumerate(asked[: trials - len(done)], start=len(done) + 1)
        ]
        found = measure(some)
        done += found
        if len(found) == len(asked):
            scores = [trial.score for trial in found]
            optimiser.tell([(x, score) for x, score in zip(asked, scores, strict=True)])
    return done


EVALUATOR = "none"  # whose losses say which tokens are key
Kind = Literal["targets", "key tokens", "answers"]
Samples = Mapping[Key, Mapping[str, Any]]
Losses = dict[str, tuple[float, int]]  # nats and targets, by document or trial
Masks = dict[tuple[str, Any], NDArray[np.bool_]]  # which targets are key, by document and window


@dataclass(frozen=True)
class Split:
    """The documents, or trials of a task, that the search sees, and those held out."""

    search: frozenset[str]
    held: frozenset[str]

    @classmethod
    def of(cls, plan: Plan, seed: int) -> Split:
        """Draw one of every two neighbours for the search; raise UserError where there is one."""
        units = list(dict.fromkeys(q.doc_id for cell in plan.cells for q in cell.questions))
        if len(units) < 2:
            raise UserError(
                f"tune needs two documents or more, to hold some out; {len(units)} has room for"
                f" {max(plan.lengths)} tokens."
            )
        draw = Random(seed)
        pairs = [units[at : at + 2] for at in range(0, len(units) - 1, 2)]
        search = frozenset(draw.choice(pair) for pair in pairs)
        return cls(search, frozenset(units) - search)


def kind_of(plan: Plan, *, key_tokens: bool) -> Kind:
    """Return what is minimised; raise UserError for a task that gives no loss."""
    (task,) = plan.tasks
    questions = [q for cell in plan.cells for q in cell.questions]
    losses = task.module.METRIC == "perplexity"
    if key_tokens and not (losses and all(q.metadata.get("protocol") == "tail" for q in questions)):
        raise UserError(
            f"--key-tokens needs perplexity by the protocol tail, the task is {task.label}."
        )
    if any(q.metadata.get("protocol") == "overlap" for q in questions):
        raise UserError(
            f"{task.label} reads across the ends of documents: what is held out would be searched "
            "too. Give another protocol."
        )
    if losses:
        return "key tokens" if key_tokens else "targets"
    told = "logprob" in getattr(task.module, "FACTS", {})
    if told and not any(isinstance(q, Generate) for q in questions):
        return "answers"
    form = "; write form=argmax" if told else ", as perplexity and passkey do"
    raise UserError(f"{task.label} gives no log-probability to search by{form}.")


def wanted(cell: Cell, length: int, kind: Kind) -> bool:
    """Return whether a cell is measured: at the length, and for key tokens the evaluator's."""
    return cell.length == length or (kind == "key tokens" and cell.scaling == EVALUATOR)


def losses(
    cell: Cell, samples: Samples, units: Set[str], kind: Kind, masks: Masks
) -> Losses | None:
    """Return the losses of some documents; None where a sample, or its mask, has no number."""
    found: Losses = {}
    for question in cell.questions:
        if question.doc_id not in units:
            continue
        record = samples.get(Item(cell, question).key)
        if record is None or record["status"] != "ok":
            return None
        if kind == "key tokens":
            mask = masks.get((question.doc_id, question.metadata.get("window")))
            if mask is None:  # the evaluator has no losses there
                return None
            each = np.array(record["facts"]["losses"])
            nats, count = float(each[mask].sum()), int(mask.sum())
        elif kind == "answers":
            nats = -record["facts"]["logprob"]
            count = sum(part.length - part.start for part in question.model_requests)
        else:
            nats, count = record["value"], record["weight"]
        before = found.get(question.doc_id, (0.0, 0))
        found[question.doc_id] = before[0] + nats, before[1] + count
    return found


def key_masks(plan: Plan, samples: Samples, split: Split) -> Masks:
    """Return which targets are key: those that the evaluator's longer context makes clear.

    Raises UserError where one of the halves has none: a search of it would end without a number.
    """
    inside = [n for n in plan.lengths if n <= plan.checkpoint.rope.trained_length]
    of = Rule(EVALUATOR, min(inside), max(inside), DROP, MOST)
    each: dict[int, dict[tuple[str, Any], NDArray[np.float64]]] = {
        cell.length: {
            (q.doc_id, q.metadata.get("window")): np.array(record["facts"]["losses"])
            for q in cell.questions
            if (record := samples.get(Item(cell, q).key)) and record["status"] == "ok"
        }
        for cell in plan.cells
        if cell.scaling == EVALUATOR
    }
    short, long = each[of.short], each[of.long]
    masks = {at: of.keys(short[at], long[at]) for at in short if at in long}
    for half, units in (("of the search", split.search), ("held out", split.held)):
        if not any(mask.any() for (unit, _), mask in masks.items() if unit in units):
            raise UserError(
                f"no target is a key token on the documents {half}; give more documents, or a "
                "larger tail."
            )
    return masks


def score(found: Losses | None) -> float:
    """Return the mean loss in nats a target; infinite where it has no number."""
    if found is None:
        return math.inf
    counts = sum(count for _, count in found.values())
    return math.fsum(nats for nats, _ in found.values()) / counts if counts else math.inf


def regrets(every: Sequence[Losses]) -> list[float] | None:
    """Return how much worse each method is at most than the best of all, as a share (95 %).

    None for fewer than 3 documents with targets.
    """
    names = [name for name, (_, count) in every[0].items() if count]
    costs = np.array([[one[name][0] for one in every] for name in names])
    weights = np.array([float(every[0][name][1]) for name in names])
    found = select_means(costs, weights) if names else None
    return None if found is None else [share(nats) for nats in found.regret.tolist()]


def difference(one: Losses, other: Losses) -> Difference:
    """Return one less the other, document by document, as a share of the other's perplexity."""
    names = [name for name in one if one[name][1]]
    apart = np.array([[one[name][0] - other[name][0]] for name in names])
    weights = np.array([[float(one[name][1])] for name in names])
    return of_means(apart, weights, relative=True)[0]


Measure = Callable[[Plan], Iterable[Mapping[str, Any]]]
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
        self.samples: dict[Key, Mapping[str, Any]] = dict(checked_samples(self.folder))

    def run(self, space: Space, trials: int, seed: int, told: RenderedTable) -> list[Trial]:
        """Measure the closed-form methods, then search; return all trials in order.

        ``told`` is given all trials so far after each generation.
        """
        self._complete(self.closed, self.split.search)
        if self.kind == "key tokens":
            self._complete([EVALUATOR], self.split.held)
            self.masks = key_masks(self.plan, self.samples, self.split)
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
        (cell,) = [c for c in self.plan.cells if (c.scaling, c.length) == (label, self.length)]
        return losses(cell, self.samples, units, self.kind, self.masks)

    def _scored(self, some: Sequence[Trial]) -> list[Trial]:
        """Return the trials of one generation with their scores."""
        labels = {trial.number: self._added(trial.method) for trial in some}
        self._complete([label for label in labels.values() if label], self.split.search)
        scores = {
            number: score(self.losses(label, self.split.search)) if label else math.inf
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
            if question.doc_id in units
        }
        part = replace(self.plan, only=keys)
        if next(part.left(measured(self.samples)), None) is not None:
            for sample in self.measure(part):
                self.samples[sample["cell"], sample["question"]] = sample


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the least loss, the first of equals; raise UserError for none."""
    found = min(trials, key=lambda trial: trial.score)
    if not math.isfinite(found.score):
        raise UserError(
            f"none of {counted(len(trials), 'trials')} has a number; samples.jsonl has the reasons."
        )
    return found


FOUND, REPORT = "found.json", "tune.md"
Table = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One method: its losses in nats per target on both halves, and its difference there.

    ``regret`` is how much worse than the best of all it is at most on what was held out.
    """

    scaling: str
    search: float
    held: float
    on_search: Difference | None = None
    on_held: Difference | None = None
    regret: float | None = None


def rows(tuning: Tuning, label: str) -> list[Row]:
    """Return the found method, then the closed-form ones, the best on the search documents first.

    The differences are from that best one, and None for itself and where one has no number. A
    closed-form method that is the found one is in its row alone.
    """
    halves = (tuning.split.search, tuning.split.held)
    every = {
        name: [tuning.losses(name, units) for units in halves] for name in (label, *tuning.closed)
    }
    others = (name for name in tuning.closed if name != label)
    order = sorted(others, key=lambda name: score(every[name][0]))
    made = []
    held_out = {name: found for name in (label, *order) if (found := every[name][1])}
    bounds = dict(zip(held_out, regrets(list(held_out.values())) or [], strict=False))
    for name in (label, *order):
        pairs = zip(every[name], every[order[0]], strict=True)
        apart = [difference(one, best) if one and best else None for one, best in pairs]
        search, held = (score(one) for one in every[name])
        told = apart if name != order[0] else [None, None]
        made.append(Row(name, search, held, told[0], told[1], bounds.get(name)))
    return made


def write(tuning: Tuning, found: Trial, table: Sequence[Row], trials: int) -> Path:
    """Write found.json, which ``--scaling`` reads, and return its path."""
    path = tuning.folder / FOUND
    inner = Path(found.method)
    whole: Table = (
        json.loads(inner.read_text(encoding="utf-8"))
        if inner.suffix == ".json"
        else {"scaling": found.method}
    )
    whole |= {
        "model": tuning.plan.checkpoint.name,
        "length": tuning.length,
        "task": tuning.plan.tasks[0].label,
        "minimised": f"loss of the {tuning.kind}, nats each",
        "trials": trials,
        "search": table[0].search,
        "held_out": table[0].held,
    }
    with replacing(path) as new:
        new.write((json.dumps(whole, indent=1) + "\n").encode())
    return path


def shown(tuning: Tuning, table: Sequence[Row]) -> pd.DataFrame:
    """Return the table as texts."""
    best = table[1].scaling
    name = {"targets": "perplexity", "key tokens": "perplexity of key tokens"}
    metric = name.get(tuning.kind, "perplexity of the answers")
    return pd.DataFrame(
        {
            "scaling": row.scaling,
            f"{metric}, search": perplexity(row.search),
            "held out": perplexity(row.held),
            f"less {best}, search": _apart(row.on_search, ends=False),
            f"less {best}, held out [95 %]": _apart(row.on_held),
        }
        for row in table
    )


def words(tuning: Tuning, found: Trial, table: Sequence[Row], trials: int) -> list[str]:
    """Say what was found, whether it holds on held-out documents, and how much of it is lost."""
    first, best = table[0], table[1].scaling
    other = "other " * (first.scaling in tuning.closed)
    units = "trials" if tuning.kind == "answers" else "documents"
    searched, held = (
        counted(len(half), units) for half in (tuning.split.search, tuning.split.held)
    )
    tried = f"{counted(trials, 'points')}, number {found.number}"
    told = [f"{found.method} is the best of {tried}, on {searched}."]
    if first.on_held is None or first.on_search is None:
        return [*told, f"It or {best} has no number on all of them: nothing is compared."]
    gains = [apart.value for apart in (first.on_search, first.on_held)]
    low, high = first.on_held.low, first.on_held.high
    told.append(
        f"There its perplexity differs by {signed(gains[0])} from that of {best}, the best {other}"
        f"closed-form method; on the {held} held out by {_apart(first.on_held)}. The gap "
        f"between the two is {100 * abs(gains[1] - gains[0]):.1f} percentage points."
    )
    if low is None or high is None:
        return [*told, f"Use {best}: {held} held out are too few for an interval."]
    use = first if high < 0 else table[1]
    verdict = "lower" if high < 0 else "higher" if low > 0 else "not significantly different"
    bound = "" if use.regret is None else (
        f" On what was held out its perplexity is at most {100 * use.regret:.1f} % above that of "
        f"the best of {len(table)} methods (95 %)."
    )  # fmt: skip
    return [*told, f"Held out, the found method is {verdict}: use {use.scaling}.{bound}"]


def served(given: str, tuning: Tuning) -> str:
    """Return a method with the factor that a server keeps, where it takes that of each length."""
    rope, length = tuning.plan.checkpoint.rope, tuning.length
    fixed = f"{given}{',' if ':' in given else ':'}factor={rope.stretch(length):.15g}"
    try:
        found = resolve(load("method", fixed), rope, length)
    except UserError:  # it has no factor, or one already
        return given
    return (
        fixed
        if found.fingerprint == resolve(load("method", given), rope, length).fingerprint
        else given
    )


def unpriced(methods: Sequence[str], tuning: Tuning) -> list[str]:
    """Say of which methods a run inside the window does not tell the price that a server pays."""
    rope, length = tuning.plan.checkpoint.rope, tuning.length
    window = rope.trained_length
    known = [load("method", given) for given in methods] if length > window else []
    changing = [
        method.label for method in known
        if depends_on_length(resolve(method, rope, length), resolve(method, rope, window), window)
    ]  # fmt: skip
    if not changing:
        return []
    return [
        f"It is not that of {listed(changing)} as a server keeps it: measured inside the window is "
        f"the form for {window:,} tokens, served for all lengths that for {length:,}."
    ]


def report(tuning: Tuning, table: Sequence[Row], told: Sequence[str]) -> Path:
    """Write the page with the sentences and the table, and return its path."""
    path = tuning.folder / REPORT
    title = f"{tuning.plan.tasks[0].label} at {tuning.length} tokens"
    with replacing(path) as new:
        new.write(page([({title: shown(tuning, table)}, told)]).encode())
    return path


def perplexity(nats: float) -> str:
    """Return a loss in nats a target as a perplexity of four digits."""
    if not math.isfinite(nats):
        return "no number"
    return f"{math.exp(min(nats, 700.0)):#.4g}".removesuffix(".")


def _apart(found: Difference | None, *, ends: bool = True) -> str:
    if found is None:
        return ""
    return signed(found.value, *((found.low, found.high) if ends else ()))
