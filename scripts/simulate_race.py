#!/usr/bin/env python
"""How often a race is wrong, how tight its bound is, and what it spends.

.venv/bin/python -m scripts.simulate_race > results/races.md
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from harness.select.race import CUT, FAR, NEAR, WINNER, Array, Budget, Need, Race, Rules, rounds

Random = np.random.Generator
CANDIDATES, RACES = 25, 100
SPREAD = 0.01  # of a method's loss on a document, in nats: two methods differ by 1.4 % there
TARGET = 4  # windows: what a forward inside the window and truncation cost, relative to the target
WEIGHTS = {FAR: 1.0, NEAR: 1 / TARGET, CUT: 8 * (TARGET - 1) / TARGET}
Draw = Callable[[Random, tuple[int, int]], Array]  # by documents and candidates
# Losses of a document under one method, less those of the document itself, of spread 1.
SHAPES: dict[str, Draw] = {
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
RARE: dict[str, Draw] = {
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
        """Return the forwards asked for, in forwards at the target."""
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
class Found:
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


def simulate(shape: str, means: str, documents: int, *, races: int, seed: int) -> Found:
    """Race 25 candidates; documents differ far more than methods, by losses that they share."""
    rng, draw, mean = np.random.default_rng(seed), (SHAPES | RARE)[shape], MEANS[means]
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
        race = Race(known, names, rules)
        known.budget = Budget(race.default_budget(documents * grid))
        ended = race.run(lambda _: None)
        true = dict(zip(names, (mean - mean.min())[order].tolist(), strict=True))
        regret = ended.regret.get(ended.recommended, math.inf)
        named, unique = ended.ended == WINNER, int((mean == mean.min()).sum()) == 1
        lost = unique and min(true, key=lambda name: true[name]) not in ended.possible
        wrong = named and (true[ended.recommended] > 0 or not unique)
        row = true[ended.recommended] <= regret, lost, wrong, named and not wrong
        made.append((*row, math.expm1(regret), known.spent() / grid / documents))
    table = np.array(made, float)
    return Found(*table[:, :4].mean(axis=0).tolist(), *np.median(table[:, 4:], axis=0).tolist())


TEXT = f"""\
# How often a race is wrong

Made by `python -m scripts.simulate_race` with the code that `ropewalk recommend` runs: {{races}}
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
            found = simulate(shape, means, count, races=races, seed=count)
            print(f"| {shape} | {count} | {' | '.join(found.cells())} |", flush=True)


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--races", type=int, default=RACES)
    races = parser.parse_args().races
    print(TEXT.format(races=races, rounds=", ".join(map(str, rounds(100)[:-1]))), end="")
    for means, counts in TABLES.items():
        _table(means.capitalize(), SHAPES, means, counts, races)
    _table("Rare failures", RARE, "a realistic spread", (10, 23, 50), races)


if __name__ == "__main__":
    main()
