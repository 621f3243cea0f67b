#!/usr/bin/env python
"""How often a race names a wrong winner, finds one that leads, and what it spends.

.venv/bin/python -m scripts.simulate_race > results/races.md
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.recommend.race import WORSE, Losses, Rules, Standing, affordable, decided, rounds

Array = NDArray[np.float64]
Random = np.random.Generator
CANDIDATES = 25
DOCUMENTS = (3, 10, 23, 50)
RACES = 100
# Losses of a document under one method, less those of the document itself, of spread 1.
SHAPES: dict[str, Callable[[Random, tuple[int, ...]], Array]] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "Student's t, 4 degrees": lambda rng, size: rng.standard_t(4, size) / np.sqrt(2),
    "exponential": lambda rng, size: rng.exponential(1, size) - 1,
    "lognormal, sigma 1": lambda rng, size: (
        (np.exp(rng.standard_normal(size)) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
    ),
    "one document in five lost": lambda rng, size: (
        0.3 * rng.standard_normal(size) + ((rng.random(size) < 0.2) - 0.2) / 0.42
    ),
}


@dataclass(frozen=True)
class Found:
    """Shares of races: a wrong sole winner, the right one; and of the forwards of the grid."""

    wrong: float
    right: float
    lost: float
    spent: float


def race(far: Losses, prices: Losses, rules: Rules, budget: float) -> tuple[Standing, int]:
    """Run a race on losses that are all known; return how it ends and the losses it asked for."""
    standing, seen = Standing(tuple(far)), set[tuple[str, int]]()
    for end in rules.rounds:
        if standing.ended:
            break
        seen |= {(name, unit) for name in standing.left for unit in range(end)}
        here = {name: far[name][:end] for name in standing.left}
        near = {name: prices[name][:end] for name in standing.left}
        standing = decided(standing, here, near, rules)
        left = {name: far[name][:end] for name in standing.left}
        standing = affordable(
            standing, left, budget - len(seen), 2.0 * (rules.rounds[-1] - end), rules
        )
    return standing, len(seen)


def simulate(
    shape: str,
    documents: int,
    *,
    lead: float,
    noise: float,
    races: int,
    seed: int,
    share: float = 1.0,
) -> Found:
    """Race candidates of one mean, the last of which leads by so many nats (0: none does).

    Documents differ far more than methods: by lognormal losses that all methods share.
    """
    rng, rules = np.random.default_rng(seed), Rules(rounds(documents))
    names = [f"m{index:02}" for index in range(CANDIDATES)]
    prices = {name: np.zeros(documents) for name in names}
    counts: Counter[str] = Counter()
    spent = 0
    for _ in range(races):
        shared = np.exp(rng.standard_normal((documents, 1)))
        losses = shared + noise * SHAPES[shape](rng, (documents, CANDIDATES))
        losses[:, -1] -= lead
        far = {name: losses[:, index] for index, name in enumerate(names)}
        ended, asked = race(far, prices, rules, share * CANDIDATES * documents)
        spent += asked
        sole = ended.sole
        counts["right" if lead and sole == names[-1] else "wrong" if sole else "open"] += 1
        counts["lost"] += any(one.name == names[-1] and one.why == WORSE for one in ended.dropped)
    share = spent / races / CANDIDATES / documents
    return Found(counts["wrong"] / races, counts["right"] / races, counts["lost"] / races, share)


TEXT = f"""\
# How often a race errs

Made by `python -m scripts.simulate_race` with the code that `ropewalk recommend` runs: {{races}}
races a cell, of {CANDIDATES} candidates. Documents differ by lognormal losses that all methods
share; methods differ on each document by noise of the shape named, so that the paired difference
of two has the spread given.

The rule. After rounds of {{rounds}} documents, a candidate is dropped that is worse than the
leader by the paired mean: Student's t, also with the document that speaks most against it met
once more, and from 20 documents on the studentised bootstrap and the exact sign test too, as in
`best`. The level of one comparison is 5 % divided by the number of candidates and of rounds
(Bonferroni), so whichever candidate is the best is dropped in at most 5 % of races, as far as the
means of so few documents follow Student's t; the first table is what came of it. A race ends when
one is left, when all that are left are within the margin of the leader by the same tests (1 %),
or with the documents or the budget. Of fewer than 20 documents two always stay, so no winner is
named; of fewer than 3 nobody is dropped. It is a Hoeffding race (Maron and Moore 1994) with tests
of paired means in place of Hoeffding's bound, which losses without a bound do not have.

A failure that is rarer than one document in n / 3 may be on none of n; no rule sees it.
"""


def _row(name: str, documents: Sequence[int], races: int, **how: float) -> str:
    cells = []
    for count in documents:
        found = simulate(name, count, races=races, seed=count, **how)
        right = f" · {100 * found.right:.0f}" if how["lead"] else ""
        cells.append(f"{100 * found.wrong:.1f} · {100 * found.lost:.1f}{right}")
        cells[-1] += f" · {100 * found.spent:.0f}"
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--races", type=int, default=RACES)
    races = parser.parse_args().races
    print(TEXT.format(races=races, rounds=", ".join(map(str, rounds(50)))))
    for title, lead, noise, share in (
        ("All equal", 0.0, 0.02, 1.0),
        ("One better by 1 %", 0.01, 0.01, 1.0),
        ("One better by 2 %", 0.02, 0.01, 1.0),
        ("One better by 2 %, with a budget of a third", 0.02, 0.01, 1 / 3),
    ):
        spread = 100 * noise * 2**0.5
        print(f"## {title}; paired differences of two have a spread of {spread:.1f} % a document\n")
        print(
            f"In % of races: a wrong sole winner is named · the last candidate (with a lead, the "
            f"best) is dropped as worse{' · the right winner is named' if lead else ''}; then the "
            "share of the forwards of the whole grid, in %. By number of documents.\n"
        )
        print(f"| | {' | '.join(map(str, DOCUMENTS))} |\n|:--|{'--:|' * len(DOCUMENTS)}")
        for name in SHAPES:
            print(_row(name, DOCUMENTS, races, lead=lead, noise=noise, share=share), flush=True)
        print()


if __name__ == "__main__":
    main()
