#!/usr/bin/env python
"""How often the statistics of reports and races are wrong, and what they can decide, by simulation.

OMP_NUM_THREADS=1 .venv/bin/python -m scripts.simulate > results/statistics.md
.venv/bin/python -m scripts.simulate race > results/races.md
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.select.race import CUT, FAR, NEAR, WINNER, Budget, Need, Race, Rules, rounds
from harness.stats.paired import of_means
from harness.stats.selection import select_means, select_shares

Array = NDArray[Any]
Random = np.random.Generator
Noise = Callable[[Random, tuple[int, int]], Array]  # by documents and methods
Draw = Callable[[Random, tuple[int, int]], tuple[Array, Array]]  # losses less their mean, tokens
DOCUMENTS = (8, 12, 20, 40, 60)
METHODS = (2, 5, 12, 25)
ROUNDS = 2000  # of a single comparison
SELECTIONS = {2: 1500, 5: 600, 12: 300, 25: 200}  # by number of methods
LEAD = 0.2  # standard deviations by which the best method of the table on regret is better


def alike(draw: Noise) -> Draw:
    """Give every document one weight."""
    return lambda rng, size: (draw(rng, size), np.ones(size))


def by_length(draw: Noise) -> Draw:
    """Weight documents by lengths that differ about tenfold (lognormal, sigma 0.5)."""
    return lambda rng, size: (draw(rng, size), np.exp(0.5 * rng.standard_normal(size)))


def lost(share: float, nats: float, noise: float) -> Noise:
    """Lose a share of the documents by so many nats."""
    return lambda rng, size: (
        noise * rng.standard_normal(size) + nats * ((rng.random(size) < share) - share)
    )


def lognormal(sigma: float) -> Noise:
    """Return lognormal losses less their mean."""
    return lambda rng, size: np.exp(sigma * rng.standard_normal(size)) - math.exp(sigma**2 / 2)


def with_length(sigma: float, together: float) -> Draw:
    """Draw lognormal losses that go with the length of the document, with this correlation."""
    own = math.sqrt(1 - together**2)
    mean = math.exp(((0.5 + sigma * together) ** 2 + (sigma * own) ** 2) / 2 - 0.125)

    def draw(rng: Random, size: tuple[int, int]) -> tuple[Array, Array]:
        length = rng.standard_normal(size)
        loss = np.exp(sigma * (together * length + own * rng.standard_normal(size)))
        return loss - mean, np.exp(0.5 * length)

    return draw


def lost_exponentially(rng: Random, size: tuple[int, int]) -> Array:
    """Lose one document in five by an exponential amount, 1 nat in the mean."""
    lost = (rng.random(size) < 0.2) * rng.exponential(1, size)
    return np.asarray(0.3 * rng.standard_normal(size) + lost - 0.2)


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
CASES: dict[str, Draw] = {
    **{name: alike(draw) for name, draw in {**MODERATE, **OTHER, **EXTREME}.items()},
    **{f"{name}; by length": by_length(draw) for name, draw in {**MODERATE, **EXTREME}.items()},
    "lognormal, sigma 0.5; longer is easier": with_length(0.5, -0.5),
    "lognormal, sigma 0.75; longer is harder": with_length(0.75, 0.5),
    **{name: alike(draw) for name, draw in RARE.items()},
}


@dataclass(frozen=True)
class Single:
    """Shares of rounds of one comparison with a mean of 0.

    The interval covers it; and does not, so that one of two equal methods is named the winner.
    """

    covered: float
    winner: float


def single(draw: Draw, documents: int, *, rounds: int = ROUNDS) -> Single:
    """Draw the differences of two methods of equal mean."""
    losses, tokens = draw(np.random.default_rng(documents), (documents, rounds))
    differences = of_means(losses * tokens, tokens)
    wrong = float(np.mean([one.significant() for one in differences]))
    return Single(1 - wrong, wrong)


@dataclass(frozen=True)
class Many:
    """For selections among many methods: shares of rounds, and the median regret.

    Attributes:
        right: the best method is named the winner.
        wrong: another method is, or any where all are equal.
        covered: the regret bounds hold for all methods, and the best is not called worse.
        bound: median regret bound of the method with the lowest mean, in standard deviations of
            the paired difference.
    """

    right: float
    wrong: float
    covered: float
    bound: float


def many(
    shape: str,
    methods: int,
    documents: int,
    *,
    lead: float = 0.0,
    unequal: bool = False,
    correlated: bool = False,
    rounds: int | None = None,
) -> Many:
    """Select among methods whose losses differ by noise of a shape, on the same documents.

    Args:
        shape: of the noise.
        methods: how many.
        documents: how many.
        lead: lead of the best method, which is drawn anew in each round, in standard deviations of
            the paired difference of two methods.
        unequal: whether every second method has a tenth of the noise of the others; of two, the
            difference then has the shape itself.
        correlated: whether half of each method's variance is shared by every other one of its
            kind (even and odd places), so that differences are correlated unevenly.
        rounds: how many.
    """
    rng = np.random.default_rng(documents)
    draw, rounds = SHAPES[shape], rounds or SELECTIONS[methods]
    spread = math.sqrt(2 * float(draw(np.random.default_rng(0), (200_000, 1)).var()))
    scale = np.where(np.arange(methods) % 2, 1.0, 0.1 if unequal else 1.0)
    right = wrong = covered = 0
    bounds = []
    for _ in range(rounds):
        losses = draw(rng, (documents, methods)) * scale
        if correlated:
            shared = draw(rng, (documents, 2))[:, np.arange(methods) % 2]
            losses = (losses + shared) / math.sqrt(2)
        best = int(rng.integers(methods))
        means = np.full(methods, lead * spread)
        means[best] = 0.0
        selection = select_means(losses + means, np.ones(documents))
        assert selection is not None
        right += bool(lead) and selection.winner and selection.best == best
        wrong += selection.winner and not (lead and selection.best == best)
        truly = means - means.min()
        covered += bool(
            (truly <= selection.regret).all() and (selection.possible[best] or not lead)
        )
        bounds.append(selection.regret[selection.best] / spread)
    return Many(right / rounds, wrong / rounds, covered / rounds, float(np.median(bounds)))


def hits(methods: int, trials: int, share: float, *, lead: float, rounds: int) -> Many:
    """Select among methods that pass trials by chance alone, the best by ``lead`` more often."""
    rng = np.random.default_rng(trials)
    right = wrong = covered = 0
    bounds = []
    for _ in range(rounds):
        best = int(rng.integers(methods))
        shares = np.full(methods, share)
        shares[best] += lead
        selection = select_shares((rng.random((trials, methods)) < shares).astype(float))
        assert selection is not None
        right += bool(lead) and selection.winner and selection.best == best
        wrong += selection.winner and not (lead and selection.best == best)
        holds = (shares.max() - shares <= selection.regret).all()
        covered += bool(holds and (selection.possible[best] or not lead))
        bounds.append(selection.regret[selection.best])
    return Many(right / rounds, wrong / rounds, covered / rounds, float(np.median(bounds)))


TEXT = f"""\
# Error rates of the statistics

Made by `python -m scripts.simulate` with the code that the reports run. Every value is a
percentage of simulated samples of documents unless it says otherwise: {ROUNDS} samples for a single
comparison, and for selections among {", ".join(map(str, SELECTIONS))} methods
{", ".join(map(str, SELECTIONS.values()))} samples. A rate of 5 % is therefore known to about 1
point for two methods, and to about 3 points for {max(SELECTIONS)}.

**The rule.** The method with the lowest mean is named the winner if its paired 95 % interval
against every other method excludes zero, or if the bounds below leave no other method possible.
Every method also has a bound on its regret, the amount by which it is at most worse than the best
of all; these bounds hold for all methods together (95 %). The intervals are Student's t, widened
by a studentised bootstrap of the documents; the joint bounds are Hsu's, with the same bootstrap.

**The shapes** are of the differences between methods on one document. Seven are symmetric or
moderately skewed, three are extreme, and in two a method fails on documents so rare that most
small samples contain no failure. "By length": documents differ in length about tenfold, and means
are per token.
"""


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _print(
    title: str, text: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]
) -> None:
    print(f"## {title}\n\n{text}\n\n| | {' | '.join(columns)} |\n|:--|{'--:|' * len(columns)}")
    for name, values in rows:
        print(f"| {name} | {' | '.join(values)} |")
    print(flush=True)


def _single(case: tuple[str, int]) -> Single:
    return single(CASES[case[0]], case[1])


def _many(options: dict[str, Any]) -> Many:
    return many(**options)


def singles(pool: ProcessPoolExecutor) -> None:
    """Print what a single comparison does."""
    cases = [(name, n) for name in CASES for n in DOCUMENTS]
    results = dict(zip(cases, pool.map(_single, cases), strict=True))
    for title, text, attribute in (
        ("The 95 % interval covers the mean", "One method, or the difference of two.", "covered"),
        (
            "False winner between two methods of equal mean",
            "Their differences have the shape of the row. One is named the winner.",
            "winner",
        ),
    ):
        rows = (
            (name, [_percent(getattr(results[name, n], attribute)) for n in DOCUMENTS])
            for name in CASES
        )
        _print(title, text, [f"{n} documents" for n in DOCUMENTS], rows)


def selections(pool: ProcessPoolExecutor) -> None:
    """Print what selections among several methods do."""
    spreads = {"equal spreads": False, "unequal spreads": True}

    def table(
        title: str,
        text: str,
        options: dict[str, dict[str, Any]],
        show: Callable[[Many], str],
        documents: Sequence[int] = DOCUMENTS,
    ) -> None:
        jobs = [{**of, "documents": n} for of in options.values() for n in documents]
        results = iter(list(pool.map(_many, jobs)))
        rows = ((name, [show(next(results)) for _ in documents]) for name in options)
        _print(title, text, [f"{n} documents" for n in documents], rows)

    def spread_rows(shapes: Iterable[str], lead: float) -> dict[str, dict[str, Any]]:
        return {
            f"{shape}; {k} methods, {name}": {
                "shape": shape,
                "methods": k,
                "unequal": unequal,
                "lead": lead,
            }
            for shape in shapes
            for k in METHODS
            for name, unequal in spreads.items()
        }

    table(
        "False winner among methods of equal mean",
        "Any method is named the winner. Unequal spreads: every second method varies a tenth as "
        "much as the others.",
        spread_rows(SHAPES, 0.0),
        lambda result: _percent(result.wrong),
        (8, 20),
    )
    table(
        "Power",
        "The best method is named the winner, by its lead over all others in standard deviations "
        "of the paired difference. Correlated: half of the variance is shared by every other "
        "method.",
        {
            f"{shape}; lead {lead:g}, {k} methods{', correlated' * correlated}": {
                "shape": shape,
                "methods": k,
                "lead": lead,
                "correlated": correlated,
            }
            for shape in ("normal", "exponential", "20 % lost by 1 nat, noise 0.3")
            for k in (5, 25)
            for lead in (0.5, 1.0)
            for correlated in (False, True)
            if shape == "normal" or not correlated
        },
        lambda result: _percent(result.right),
    )
    table(
        "Coverage of the regret bounds, unequal means",
        f"One method, drawn at random, is better than all others by {LEAD:g} standard deviations "
        "of the paired difference. The bounds hold for every method, and the best method is not "
        "called worse.",
        spread_rows(SHAPES, LEAD),
        lambda result: _percent(result.covered),
        (8, 20),
    )
    table(
        "Coverage of the regret bounds, equal means",
        "No method is better than another, so that every bound holds: this is a check of the code.",
        spread_rows(["normal", "exponential"], 0.0),
        lambda result: _percent(result.covered),
        (8, 20),
    )
    table(
        "Tightness of the regret bound",
        "Median bound on the regret of the method with the lowest mean, in standard deviations of "
        "the paired difference; methods of equal mean.",
        {
            f"{shape}; {k} methods": {"shape": shape, "methods": k}
            for shape in ("normal", "exponential", "lognormal, sigma 1")
            for k in METHODS
        },
        lambda result: f"{result.bound:.2f}",
    )


def retrieval() -> None:
    """Print what selections by shares of hits do."""
    trials, rows = (10, 20, 50, 100), []
    for methods in (2, 5, 12):
        for share, lead in ((0.5, 0.0), (0.9, 0.0), (0.5, 0.2), (0.3, 0.5)):
            results = [hits(methods, n, share, lead=lead, rounds=300) for n in trials]
            best = f", the best {100 * (share + lead):.0f} %" if lead else ""
            values = [
                f"{_percent(one.right)} · {_percent(one.wrong)} · {_percent(one.covered)}; "
                f"{100 * one.bound:.0f}"
                for one in results
            ]
            rows.append((f"{methods} methods at {100 * share:.0f} %{best}", values))
    _print(
        "Shares of hits",
        "In % of samples: the best method is named the winner · another is · the regret bounds "
        "hold; then the median regret bound of the leading method, in percentage points. Methods "
        "pass independent trials.",
        [f"{n} trials" for n in trials],
        rows,
    )


RARELY = """\
## What no rule can do

A failure on a share s of all documents occurs in none of n documents with probability (1 - s)^n:
31 % for one document in twenty and n = 23. In such a sample the method that will fail is better on
every document, and nothing shows that its mean is worse.

The reports therefore print this sentence: n documents without a failure leave failures on up to 3/n
of all documents possible (95 %). The last two rows of the tables by shape show what it means."""


CANDIDATES, RACES = 25, 100
SPREAD = 0.01  # of a method's loss on a document, in nats: two methods differ by 1.4 % there
TARGET = 4  # windows: what a forward inside the window and truncation cost, relative to the target
WEIGHTS = {FAR: 1.0, NEAR: 1 / TARGET, CUT: 8 * (TARGET - 1) / TARGET}
# Losses of a document under one method, less those of the document itself, of spread 1.
RACE_SHAPES: dict[str, Noise] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "Student's t, 4 degrees": lambda rng, size: rng.standard_t(4, size) / np.sqrt(2),
    "exponential": lambda rng, size: rng.exponential(1, size) - 1,
    "minus exponential": lambda rng, size: 1 - rng.exponential(1, size),
    "lognormal, sigma 1": lambda rng, size: (
        (np.exp(rng.standard_normal(size)) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
    ),
    "one document in five lost": lambda rng, size: (
        (0.3 * rng.standard_normal(size) + (rng.random(size) < 0.2) - 0.2) / 0.5
    ),
    "unequal spreads": lambda rng, size: (
        rng.standard_normal(size) * np.geomspace(0.2, 5, size[1]) / 1.8
    ),
}
RACE_RARE: dict[str, Noise] = {
    "every method lost on its own one document in 30": lambda rng, size: (
        rng.standard_normal(size) + ((rng.random(size) < 1 / 30) - 1 / 30) / SPREAD
    ),
}


def _means(*better: float) -> Array:
    return np.array([0.0] * (CANDIDATES - len(better)) + [-one for one in better])


# Mean losses in nats; the last is the best. The realistic ones are like those of 25 methods at
# four windows: a few within 1 %, some within 10 %, a third hopeless.
MEANS: dict[str, Array] = {
    "equal means": _means(0.0),
    "one better by 1 %": _means(0.01),
    "one better by 2 %": _means(0.02),
    "a realistic spread": np.concatenate(
        [np.linspace(3, 0.5, 8), np.geomspace(0.3, 0.012, 12), [0.008, 0.006, 0.004, 0.002, 0.0]]
    ),
}


@dataclass
class Known:
    """Losses that are all known, asked for as if they were measured; in-window costs are 0."""

    names: tuple[str, ...]
    far: Array
    budget: Budget = field(default_factory=Budget)
    requested: dict[tuple[str, str], int] = field(default_factory=dict)

    def spent(self) -> float:
        """Return the requested forwards, in forwards at the target."""
        return sum(WEIGHTS[kind] * count for (kind, _), count in self.requested.items())

    def cost(self, needs: Iterable[Need]) -> float:
        """Return the forwards that are not asked for yet."""
        most: dict[tuple[str, str], int] = {}
        for kind, name, count in needs:
            most[kind, name] = max(most.get((kind, name), 0), count)
        return sum(
            WEIGHTS[at[0]] * max(0, count - self.requested.get(at, 0)) for at, count in most.items()
        )

    def measure(self, needs: Iterable[Need]) -> dict[str, str]:
        """Ask for losses; none is missing."""
        for kind, name, count in needs:
            self.requested[kind, name] = max(self.requested.get((kind, name), 0), count)
        return {}

    def losses(self, kind: str, name: str, documents: int) -> Array:
        """Return the losses of the first documents."""
        if kind != FAR:
            return np.zeros(documents)
        return np.asarray(self.far[:documents, self.names.index(name)])

    def unchanged(self, name: str) -> bool:
        """Return whether a candidate is the plain model."""
        return name == self.names[0]


@dataclass(frozen=True)
class Outcome:
    """Shares of races; the bound and what was spent are medians.

    ``within``: the true regret of the recommended method is within its stated bound. ``lost``: the
    best is eliminated. ``wrong`` and ``right``: a wrong or the right winner is named.
    """

    within: float
    lost: float
    wrong: float
    right: float
    bound: float
    spent: float

    def cells(self) -> list[str]:
        """Return them in percent."""
        shown = [self.within, self.lost, self.wrong, self.right, self.bound, self.spent]
        return [f"{100 * share:.1f}".removesuffix(".0") for share in shown]


def race(shape: str, means: str, documents: int, *, races: int, seed: int) -> Outcome:
    """Race 25 candidates; documents differ far more than methods, by losses that they share."""
    rng, draw, mean = np.random.default_rng(seed), (RACE_SHAPES | RACE_RARE)[shape], MEANS[means]
    names = tuple(f"m{place:02}" for place in range(CANDIDATES))
    rules = Rules(rounds(documents), names[0], frozenset(names))
    grid = sum(
        WEIGHTS[kind] * count for kind, count in ((FAR, CANDIDATES), (NEAR, CANDIDATES), (CUT, 1))
    )
    made = []
    for _ in range(races):
        losses = SPREAD * draw(rng, (documents, CANDIDATES)) + mean
        losses += np.exp(rng.standard_normal((documents, 1)))
        order = rng.permutation(CANDIDATES)  # who is the best must not matter
        known = Known(names, losses[:, order])
        run = Race(known, names, rules)
        known.budget = Budget(run.default_budget(documents * grid))
        ended = run.run(lambda _: None)
        true = dict(zip(names, (mean - mean.min())[order].tolist(), strict=True))
        regret = ended.regret.get(ended.recommended, math.inf)
        named, unique = ended.ended == WINNER, int((mean == mean.min()).sum()) == 1
        lost = unique and min(true, key=lambda name: true[name]) not in ended.possible
        wrong = named and (true[ended.recommended] > 0 or not unique)
        row = true[ended.recommended] <= regret, lost, wrong, named and not wrong
        made.append((*row, math.expm1(regret), known.spent() / grid / documents))
    table = np.array(made, float)
    return Outcome(*table[:, :4].mean(axis=0).tolist(), *np.median(table[:, 4:], axis=0).tolist())


RACE_TEXT = f"""\
# How often a race is wrong

Made by `python -m scripts.simulate race` with the code that `ropewalk recommend` runs: {{races}}
races per cell, of {CANDIDATES} candidates with the default budget. Documents differ by lognormal
losses that all methods share. On each document the methods differ by noise of the shape named, with
a standard deviation of {100 * SPREAD:.0f} %, so that two methods differ by 1.4 %. A forward inside
the window counts as a quarter of one at the target, and truncation as six: the target is four
windows long. In-window costs are 0.

**The rule.** After {{rounds}} … documents the candidates are compared by Hsu's multiple comparisons
with the best. A candidate is eliminated once it is significantly worse than another. The race ends
when the recommended method is at most 1 % worse than the best, when one candidate is left, or with
the documents or the budget. The rounds share the error of 5 %. The budget is a third of what
measuring everything takes, or all candidates on 6 documents where that is more.

**What the columns say**, in percent:

- within: races in which the recommended method is at most as much worse than the best as stated;
- best lost: races in which the best candidate is eliminated (where one is the best);
- wrong, right: races that name a wrong winner, or the right one. A race ends before it knows the
  winner once the recommended method is within the margin;
- bound: the median of the stated bound;
- spent: the median of the share of the forwards that measuring everything takes.

**What cannot be had.** A failure on one document in n / 3 is on none of n in 5 % of samples. A
bound says nothing of failures that no document shows: the last table.
"""
HEAD = ("noise", "documents", "within", "best lost", "wrong", "right", "bound", "spent")
# Of each table the documents: those of 50 take most of the time.
TABLES = {
    "a realistic spread": (10, 23, 50), "equal means": (10, 23),
    "one better by 1 %": (23,), "one better by 2 %": (23,),
}  # fmt: skip


def _table(
    title: str, shapes: Iterable[str], means: str, counts: Iterable[int], races: int
) -> None:
    print(f"\n## {title}\n\n| {' | '.join(HEAD)} |\n|:--|{'--:|' * (len(HEAD) - 1)}")
    for shape in shapes:
        for count in counts:
            found = race(shape, means, count, races=races, seed=count)
            print(f"| {shape} | {count} | {' | '.join(found.cells())} |", flush=True)


def statistics() -> None:
    """Print the tables of the reports' statistics in Markdown."""
    print(TEXT)
    with ProcessPoolExecutor(2) as pool:
        singles(pool)
        selections(pool)
    retrieval()
    print(RARELY)


def races() -> None:
    """Print the tables of races in Markdown."""
    print(RACE_TEXT.format(races=RACES, rounds=", ".join(map(str, rounds(100)[:-1]))), end="")
    for means, counts in TABLES.items():
        _table(means.capitalize(), RACE_SHAPES, means, counts, RACES)
    _table("Rare failures", RACE_RARE, "a realistic spread", (10, 23, 50), RACES)


if __name__ == "__main__":
    races() if sys.argv[1:] == ["race"] else statistics()
