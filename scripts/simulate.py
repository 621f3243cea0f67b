#!/usr/bin/env python
"""How often the statistics of reports and races are wrong, and what they can decide, by simulation.

OMP_NUM_THREADS=1 .venv/bin/python -m scripts.simulate statistics
.venv/bin/python -m scripts.simulate races

Each writes the rows of the tables in results/NAME.md anew.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ropewalk.harness.files import replacing
from ropewalk.harness.recommend.candidates import OWN, PERPLEXITY
from ropewalk.harness.recommend.losses import CUT, FAR, NEAR, Budget, Losses, Need
from ropewalk.harness.recommend.race import Race
from ropewalk.harness.stats.measure import Measure, Units
from ropewalk.harness.stats.paired import of_means
from ropewalk.harness.stats.selection import Selection, select_means, select_shares

Array = NDArray[Any]
Random = np.random.Generator
Size = tuple[int, int]  # documents and methods
Noise = Callable[[Random, Size], Array]
DOCUMENTS = (8, 12, 20, 40, 60)
METHODS = (2, 5, 12, 25)
ROUNDS = 2000  # of a single comparison
SELECTIONS = {2: 1500, 5: 600, 12: 300, 25: 200}  # by number of methods
LEAD = 0.2  # standard deviations by which the best method of the table on regret is better


def lost(share: float, nats: float, noise: float) -> Noise:
    """Lose a share of the documents by so many nats."""
    return lambda rng, size: (
        noise * rng.standard_normal(size) + nats * ((rng.random(size) < share) - share)
    )


def lost_exponentially(rng: Random, size: Size) -> Array:
    """Lose one document in five by an exponential amount, 1 nat in the mean."""
    lost = (rng.random(size) < 0.2) * rng.exponential(1, size)
    return np.asarray(0.3 * rng.standard_normal(size) + lost - 0.2)


def lognormal(sigma: float) -> Noise:
    """Return lognormal losses less their mean."""
    return lambda rng, size: np.exp(sigma * rng.standard_normal(size)) - math.exp(sigma**2 / 2)


MODERATE: dict[str, Noise] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "Student's t, 4 degrees": lambda rng, size: rng.standard_t(4, size),
    "Laplace": lambda rng, size: rng.laplace(0, 1, size),
    "gamma, shape 4": lambda rng, size: rng.gamma(4, 1, size) - 4,
    "exponential": lambda rng, size: rng.exponential(1, size) - 1,
    "lognormal, sigma 0.5": lognormal(0.5),
    "20 % lost by 1 nat, noise 0.3": lost(0.2, 1, 0.3),
}
EXTREME: dict[str, Noise] = {
    "lognormal, sigma 1": lognormal(1),
    "20 % lost by 1 nat, noise 0.1": lost(0.2, 1, 0.1),
    "20 % lost exponentially, noise 0.3": lost_exponentially,
}
RARE: dict[str, Noise] = {
    "10 % lost by 2 nats, noise 0.1": lost(0.1, 2, 0.1),
    "5 % lost by 3 nats, noise 0.05": lost(0.05, 3, 0.05),
}
OTHER: dict[str, Noise] = {
    "Weibull, shape 0.8": lambda rng, size: rng.weibull(0.8, size) - math.gamma(1 + 1 / 0.8),
    "inverse normal, shape 1": lambda rng, size: rng.wald(1, 1, size) - 1,
    "30 % lost by 0.5 nat, noise 0.2": lost(0.3, 0.5, 0.2),
}
SHAPES = {**MODERATE, **EXTREME, **RARE}
# Lognormal losses that go with the length of the document: sigma, and their correlation.
WITH_LENGTH = {
    "lognormal, sigma 0.5; longer is easier": (0.5, -0.5),
    "lognormal, sigma 0.75; longer is harder": (0.75, 0.5),
}
CASES = (
    *MODERATE, *OTHER, *EXTREME, *(f"{name}; by length" for name in (*MODERATE, *EXTREME)),
    *WITH_LENGTH, *RARE,
)  # fmt: skip


def drawn(case: str, documents: int) -> tuple[Array, Array]:
    """Draw losses of mean 0 and the tokens of each document, which are alike or lognormal."""
    rng, size = np.random.default_rng(documents), (documents, ROUNDS)
    if case in WITH_LENGTH:
        sigma, together = WITH_LENGTH[case]
        own = math.sqrt(1 - together**2)
        length = rng.standard_normal(size)
        loss = np.exp(sigma * (together * length + own * rng.standard_normal(size)))
        mean = math.exp(((0.5 + sigma * together) ** 2 + (sigma * own) ** 2) / 2 - 0.125)
        return loss - mean, np.exp(0.5 * length)
    shape, _, by_length = case.partition("; ")
    losses = (SHAPES | OTHER)[shape](rng, size)
    return losses, np.exp(0.5 * rng.standard_normal(size)) if by_length else np.ones(size)


def single(case: str, documents: int) -> float:
    """Return how often the interval of the difference of two methods of equal mean covers 0."""
    losses, tokens = drawn(case, documents)
    differences = of_means(losses * tokens, tokens)
    return 1 - float(np.mean([one.significant() for one in differences]))


@cache
def deviation(draw: Noise, methods: int = 1) -> float:
    """Return the standard deviation of the losses of methods."""
    return float(draw(np.random.default_rng(0), (200_000 // methods, methods)).std())


class Many(NamedTuple):
    """Shares of selections among many methods, and the median bound of the method that leads.

    ``right``: the best method is named the winner; ``wrong``: another is, or any where all are
    equal; ``covered``: the bounds hold for all methods, and the best is not called worse.
    """

    right: float
    wrong: float
    covered: float
    bound: float


Round = tuple[Selection | None, Array, int]  # with the true costs and the best method


def rates(selections: Iterable[Round]) -> Many:
    """Return the rates of selections."""
    rows = []
    for selection, costs, best in selections:
        assert selection is not None
        worse = costs - costs.min()
        right = bool(worse.any()) and selection.winner and selection.best == best
        holds = (worse <= selection.regret).all() and (selection.possible[best] or not worse.any())
        bound = selection.regret[selection.best]
        rows.append((right, selection.winner and not right, holds, bound))
    table = np.array(rows, float)
    right, wrong, covered = table[:, :3].mean(axis=0).tolist()
    return Many(right, wrong, covered, float(np.median(table[:, 3])))


def many(
    shape: str,
    methods: int,
    documents: int,
    *,
    lead: float = 0.0,
    unequal: bool = False,
    correlated: bool = False,
) -> Many:
    """Select among methods whose losses differ by noise of a shape, on the same documents.

    The best method, drawn anew in each round, is better by ``lead`` standard deviations of the
    paired difference, the unit of the bound. Unequal: every second method has a tenth of the noise.
    Correlated: half of each method's variance is shared by every other one.
    """
    rng, draw = np.random.default_rng(documents), SHAPES[shape]
    spread = math.sqrt(2) * deviation(draw)
    scale = np.where(np.arange(methods) % 2, 1.0, 0.1 if unequal else 1.0)

    def select() -> Round:
        losses = draw(rng, (documents, methods)) * scale
        if correlated:
            shared = draw(rng, (documents, 2))[:, np.arange(methods) % 2]
            losses = (losses + shared) / math.sqrt(2)
        best, means = int(rng.integers(methods)), np.full(methods, lead * spread)
        means[best] = 0.0
        return select_means(losses + means, np.ones(documents)), means, best

    result = rates(select() for _ in range(SELECTIONS[methods]))
    return result._replace(bound=result.bound / spread)


def hits(methods: int, trials: int, share: float, *, lead: float) -> Many:
    """Select among methods that pass trials by chance alone, the best by ``lead`` more often."""
    rng = np.random.default_rng(trials)

    def select() -> Round:
        best, shares = int(rng.integers(methods)), np.full(methods, share)
        shares[best] += lead
        passed = (rng.random((trials, methods)) < shares).astype(float)
        return select_shares(passed), -shares, best

    return rates(select() for _ in range(300))


CANDIDATES, RACES = 25, 100
TRIALS = Measure("accuracy", "parts")
SPREAD = 0.01  # of a method's loss on a document, in nats: two methods differ by 1.4 % there
TARGET = 4  # windows: what a forward inside the window and truncation cost, relative to the target
WEIGHTS = {FAR: 1.0, NEAR: 1 / TARGET, CUT: 8 * (TARGET - 1) / TARGET}
RACE_SHAPES: dict[str, Noise] = {  # drawn with a spread of 1
    **{name: SHAPES[name] for name in ("normal", "Student's t, 4 degrees", "exponential")},
    "minus exponential": lambda rng, size: 1 - rng.exponential(1, size),
    **{name: SHAPES[name] for name in ("lognormal, sigma 1", "20 % lost by 1 nat, noise 0.3")},
    "unequal spreads": lambda rng, size: (
        rng.standard_normal(size) * np.resize(np.geomspace(0.2, 5, CANDIDATES), size[1])
    ),
    "each method lost on its own one document in 30": lost(1 / 30, 1, 0.01),
}


# Mean losses in nats; the last is the best. The realistic ones are like those of 25 methods at
# four windows: a few within 1 %, some within 10 %, a third hopeless.
MEANS: dict[str, Array] = {
    "equal means": np.zeros(CANDIDATES),
    "one better by 2 %": np.array([0.02] * (CANDIDATES - 1) + [0.0]),
    "a realistic spread": np.concatenate(
        [np.linspace(3, 0.5, 8), np.geomspace(0.3, 0.012, 12), [0.008, 0.006, 0.004, 0.002, 0.0]]
    ),
}


# Shares of trials that 25 methods pass; the last is the best.
PASSED: dict[str, Array] = {
    "equal at 50 %": np.full(CANDIDATES, 0.5),
    "equal at 90 %": np.full(CANDIDATES, 0.9),
    "one better by 20 points": np.array([0.5] * (CANDIDATES - 1) + [0.7]),
    "a realistic spread": np.concatenate(
        [np.linspace(0, 0.1, 8), np.linspace(0.2, 0.7, 12), [0.75, 0.78, 0.8, 0.85, 0.9]]
    ),
}


class Known(Losses):
    """Losses that are all known, asked for as if they were measured; in-window costs are 0.

    ``far`` has those of every task at the target, shape (documents or trials, methods).
    """

    window, target, samples = 1, TARGET, {}

    def __init__(
        self, names: Sequence[str], far: Mapping[str, Array], budget: float = math.inf
    ) -> None:
        self.columns, self.far, self.budget = list(names), far, Budget(budget)
        self.tasks = {task: PERPLEXITY if task == "perplexity" else TRIALS for task in far}
        self.order = {task: [str(unit) for unit in range(len(of))] for task, of in far.items()}
        self.failed, self.requested, self._keys, self._sizes = {}, {}, {}, {}
        for task, kind, name in product(far, WEIGHTS, names):
            if kind != CUT or not self.tasks[task].share:
                keys = {unit: (f"{task} {kind} {name}", unit) for unit in self.order[task]}
                self._keys[task, kind, name] = {unit: [key] for unit, key in keys.items()}
                self._sizes |= dict.fromkeys(keys.values(), WEIGHTS[kind])

    def measure(self, needs: Iterable[Need]) -> bool:
        """Note what is requested; nothing is missing."""
        self.requested |= self._wanted(needs)
        return True

    def depends_on_length(self, _: str) -> bool:
        """Return that no candidate changes its form with the length."""
        return False

    def units(self, task: str, need: Need) -> Units:
        """Return the losses, or hits, on the first documents or trials of a task."""
        kind, name, count = need
        rows = self.far[task][:count]
        losses = rows[:, self.columns.index(name)] if kind == FAR else np.full(len(rows), -1.0)
        values = losses if self.tasks[task].lower else -losses
        return {str(unit): (value, 1.0) for unit, value in enumerate(values.tolist())}


class Raced(NamedTuple):
    """Shares of races; the bound and what was spent are medians.

    ``within``: the true regret of the recommended method is within its stated bound on every task.
    ``lost``: the best over all tasks is eliminated. ``wrong`` and ``right``: a wrong winner is
    named on a task, or none but right ones.
    """

    within: float
    lost: float
    wrong: float
    right: float
    bound: float
    spent: float


def texts(rng: Random, shape: str, means: str, documents: int) -> tuple[Array, Array]:
    """Draw losses of 25 methods, and how much worse than the best each is in truth.

    Documents differ far more than methods, by losses that they share.
    """
    draw, mean = RACE_SHAPES[shape], MEANS[means]
    losses = SPREAD / deviation(draw, CANDIDATES) * draw(rng, (documents, CANDIDATES)) + mean
    return losses + np.exp(rng.standard_normal((documents, 1))), np.expm1(mean - mean.min())


def trials(rng: Random, passed: str, count: int) -> tuple[Array, Array]:
    """Draw trials that 25 methods pass, and by how much the share of each is below the best.

    Half of what decides whether a trial is passed is the trial's own.
    """
    luck = rng.standard_normal((count, 1)) + rng.standard_normal((count, CANDIDATES))
    hits = luck / math.sqrt(2) < ndtri(PASSED[passed])
    return -hits.astype(float), PASSED[passed].max() - PASSED[passed]


def race(*tasks: Callable[[Random], tuple[Array, Array]], seed: int, races: int = RACES) -> Raced:
    """Race 25 candidates by tasks: perplexity, where a method loses nats, or shares of trials."""
    rng, rows = np.random.default_rng(seed), []
    names = (OWN, *(f"m{index:02}" for index in range(1, CANDIDATES)))
    for _ in range(races):
        drawn = [task(rng) for task in tasks]
        order = rng.permutation(CANDIDATES)  # who is the best must not matter
        labels = [
            "perplexity" if losses.max() > 0 else f"trials {at}"
            for at, (losses, _) in enumerate(drawn)
        ]
        known = Known(names, {k: of[:, order] for k, (of, _) in zip(labels, drawn, strict=True)})
        run = Race(known, names)
        known.budget = Budget(run.default_budget())
        *_, ended = run.run()
        worse = [dict(zip(names, of[order].tolist(), strict=True)) for _, of in drawn]
        whole = {name: max(of[name] for of in worse) for name in names}
        best = [name for name in names if whole[name] == min(whole.values())]
        named = [(w, of) for w, of in zip(ended.winners.values(), worse, strict=True) if w]
        wrong = any(of[w] > 0 or [*of.values()].count(0) > 1 for w, of in named)
        unknown = dict.fromkeys(labels, math.inf)
        regrets = ended.regrets.get(ended.recommended, unknown).values()
        within = all(
            of[ended.recommended] <= regret for of, regret in zip(worse, regrets, strict=True)
        )
        row = (within, len(best) == 1 and best[0] not in ended.possible, wrong, named and not wrong)
        rows.append((*map(bool, row), max(regrets), known.spent() / run.grid()))
    table = np.array(rows, float)
    return Raced(*table[:, :4].mean(axis=0).tolist(), *np.median(table[:, 4:], axis=0).tolist())


def percent(share: float) -> str:
    """Return a share in percent with one digit."""
    return f"{100 * share:.1f}"


Rows = Mapping[str, Sequence[Callable[[], Any]]]  # what each cell simulates
Tables = Iterator[tuple[str, Rows, Callable[[Any], str]]]  # by title; how a result is shown


def spreads(lead: float) -> Rows:
    """Return the rows of all shapes of equal and unequal spreads, by methods and documents."""
    return {
        f"{shape}; {'un' * unequal}equal spreads": [
            partial(many, shape, k, n, lead=lead, unequal=unequal)
            for k, n in product(METHODS, (8, 20))
        ]
        for shape, unequal in product(SHAPES, (False, True))
    }


def statistics() -> Tables:
    """Yield the tables of the reports' statistics."""
    rows: dict[str, Sequence[Callable[[], Any]]] = {
        name: [partial(single, name, n) for n in DOCUMENTS] for name in CASES
    }
    yield "The 95 % interval covers the mean", rows, percent
    title = "False winner among methods of equal mean"
    yield title, spreads(0.0), lambda result: percent(result.wrong)
    rows = {}
    for shape, k, lead in product(
        ("normal", "exponential", "20 % lost by 1 nat, noise 0.3"), (5, 25), (0.5, 1.0)
    ):
        for correlated in (False, True)[: 1 + (shape == "normal")]:
            name = f"{shape}; lead {lead:g}, {k} methods{', correlated' * correlated}"
            power = partial(many, shape, k, lead=lead, correlated=correlated)
            rows[name] = [partial(power, documents=n) for n in DOCUMENTS]
    yield "Power", rows, lambda result: percent(result.right)
    title = "Coverage of the regret bounds, unequal means"
    yield title, spreads(LEAD), lambda result: percent(result.covered)
    rows = {}
    for shape, k in product(("normal", "exponential", "lognormal, sigma 1"), METHODS):
        rows[f"{shape}; {k} methods"] = [partial(many, shape, k, n) for n in DOCUMENTS]
    yield "Tightness of the regret bound", rows, lambda result: f"{result.bound:.2f}"
    rows = {}
    for k, (share, lead) in product((2, 5, 12), ((0.5, 0.0), (0.9, 0.0), (0.5, 0.2), (0.3, 0.5))):
        best = f", the best {100 * (share + lead):.0f} %" if lead else ""
        rows[f"{k} methods at {100 * share:.0f} %{best}"] = [
            partial(hits, k, n, share, lead=lead) for n in (10, 20, 50, 100)
        ]
    title = "Shares of hits"
    yield title, rows, lambda of: f"{' · '.join(map(percent, of[:3]))}; {100 * of.bound:.0f}"


def races() -> Tables:
    """Yield the tables of races, one row per shape of noise and number of documents."""
    *usual, rare = RACE_SHAPES

    def show(of: Raced) -> str:
        return " | ".join(map(percent, of))

    for title, shapes, means, counts in (
        ("A realistic spread", usual, "a realistic spread", (10, 23, 50)),
        ("Equal means", usual, "equal means", (10, 23)),
        ("One better by 2 %", usual, "one better by 2 %", (23,)),
        ("Rare failures", [rare], "a realistic spread", (10, 23, 50)),
    ):
        rows: Rows = {
            f"{s}, {n} documents": [
                partial(race, partial(texts, shape=s, means=means, documents=n), seed=n)
            ]
            for s, n in product(shapes, counts)
        }
        yield title, rows, show
    each = {n: {p: partial(trials, passed=p, count=n) for p in PASSED} for n in (25, 100)}
    rows = {f"{p}, {n} trials": [partial(race, each[n][p], seed=n)] for p in PASSED for n in each}
    yield "Shares of trials", rows, show
    text = partial(texts, shape="normal", means="a realistic spread", documents=23)
    rows = {
        f"{p}, {n} trials": [partial(race, text, each[n][p], seed=n)] for p in PASSED for n in each
    }
    rows["two tasks of trials, a realistic spread, 100 trials"] = [
        partial(race, *[each[100]["a realistic spread"]] * 2, seed=100)
    ]
    yield "Two tasks", rows, show


def write(page: Path, tables: Tables) -> None:
    """Replace the rows of the tables of a page; everything else stays."""
    sections = page.read_text("utf-8").split("\n## ")
    with ProcessPoolExecutor(2) as pool:
        for title, rows, show in tables:
            cells = {name: [pool.submit(job) for job in jobs] for name, jobs in rows.items()}
            lines = [
                f"| {name} | {' | '.join(show(cell.result()) for cell in row)} |"
                for name, row in cells.items()
            ]
            (index,) = (i for i, text in enumerate(sections) if text.startswith(f"{title}\n"))
            head = re.split(r"(?<=:\|\n)(?=\| )", sections[index], maxsplit=1)[0]
            sections[index] = head + "\n".join(lines) + "\n"
    with replacing(page) as new:
        new.write("\n## ".join(sections).encode())


if __name__ == "__main__":
    page = Path(__file__).parents[1] / "results" / f"{sys.argv[1]}.md"
    write(page, {"statistics": statistics, "races": races}[sys.argv[1]]())
