#!/usr/bin/env python
"""How often a race names a wrong winner, finds one that leads, and what it spends.

.venv/bin/python -m scripts.simulate_race > results/races.md
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.recommend.chances import Array
from harness.recommend.race import (
    SEEN,
    WORSE,
    Losses,
    Rules,
    Standing,
    affordable,
    decided,
    rounds,
)

Random = np.random.Generator
CANDIDATES = 25
RACES = 400
Draw = Callable[[Random, tuple[int, int]], Array]  # by documents and candidates
# Losses of a document under one method, less those of the document itself, of spread 1.
SHAPES: dict[str, Draw] = {
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


def _failing(rate: float, who: slice, *, same: bool = False, others: float = 0.0) -> Draw:
    """Return losses of methods that fail by 1 nat on some documents; the mean of each is 0.

    They do so each on its own documents, or all on the ``same``; ``others`` are so much worse, all
    but the last.
    """

    def draw(rng: Random, size: tuple[int, int]) -> Array:
        made = 0.01 * rng.standard_normal(size)
        made[:, :-1] += others
        failed = rng.random((size[0], 1) if same else size) < rate
        made[:, who] += np.broadcast_to(failed - rate, size)[:, who] - others
        return made

    return draw


RIVALS, ONE, BEST = slice(0, -1), slice(0, 1), slice(-1, None)
RARE: dict[str, Draw] = {
    "all others on one in 20, each its own": _failing(1 / 20, RIVALS),
    "all others on one in 30, each its own": _failing(1 / 30, RIVALS),
    "the best on one in 30": _failing(1 / 30, BEST),
    "all others on the same one in 20": _failing(1 / 20, RIVALS, same=True),
    "all others on the same one in 30": _failing(1 / 30, RIVALS, same=True),
    "one other on one in 20, the rest 10 % worse": _failing(1 / 20, ONE, others=0.1),
    "one other on one in 30, the rest 10 % worse": _failing(1 / 30, ONE, others=0.1),
}


@dataclass(frozen=True)
class Found:
    """Shares of races, and of the forwards of the grid that they spent.

    The winner named is ``wrong`` or ``right``; the last candidate, with a lead the best, is
    ``lost``, dropped as worse, or at the end has the ``lowest`` mean.
    """

    wrong: float
    right: float
    lost: float
    lowest: float
    spent: float

    def told(self, *, lead: bool) -> str:
        """Return them in percent."""
        shown = [self.wrong, self.lost, *([self.right, self.lowest] if lead else []), self.spent]
        return " · ".join(f"{100 * share:.1f}".removesuffix(".0") for share in shown)


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
    races: int,
    seed: int,
    lead: float = 0.0,
    noise: float = 1.0,
    share: float = 1.0,
) -> Found:
    """Race candidates of one mean, the last of which leads by so many nats (0: none does).

    Documents differ far more than methods: by lognormal losses that all methods share. The spread
    of a shape is ``noise``; the budget is a ``share`` of the grid.
    """
    rng, rules, draw = np.random.default_rng(seed), Rules(rounds(documents)), (SHAPES | RARE)[shape]
    names = [f"m{index:02}" for index in range(CANDIDATES)]
    prices = {name: np.zeros(documents) for name in names}
    counts: Counter[str] = Counter()
    for _ in range(races):
        losses = noise * draw(rng, (documents, CANDIDATES))
        losses += np.exp(rng.standard_normal((documents, 1)))
        losses[:, -1] -= lead
        far = {name: losses[:, index] for index, name in enumerate(names)}
        ended, asked = race(far, prices, rules, share * CANDIDATES * documents)
        counts["spent"] += asked
        counts["right"] += bool(lead and ended.sole == names[-1])
        counts["wrong"] += bool(ended.sole and not (lead and ended.sole == names[-1]))
        counts["lost"] += any(one.name == names[-1] and one.why == WORSE for one in ended.dropped)
        counts["lowest"] += ended.leader == names[-1]
    wrong, right, lost, lowest = (
        counts[one] / races for one in ("wrong", "right", "lost", "lowest")
    )
    return Found(wrong, right, lost, lowest, counts["spent"] / races / CANDIDATES / documents)


TEXT = f"""\
# How often a race errs

Made by `python -m scripts.simulate_race` with the code that `ropewalk recommend` runs: {{races}}
races a cell, of {CANDIDATES} candidates. Documents differ by lognormal losses that all methods
share; methods differ on each document by noise of the shape named.

**The rule.** After rounds of {{rounds}} … documents, a candidate is dropped that is worse than the
leader by the paired mean: Student's t, also with one document more, and from 20 documents on the
studentised bootstrap and the exact sign test too, as in `best`. The one document more is that
which speaks most against it, or one on which the leader fails: it then loses as much as any
candidate that is left did on any document against what is usual for it, and while fewer than 20
documents are measured at least 1 nat. So 6 documents drop only who is about 1 nat worse, 14 who is
0.4 nats worse. The level of one comparison is 5 % divided by the number of candidates and of rounds
(Bonferroni). It is a Hoeffding race (Maron and Moore 1994) with tests of paired means in place of
Hoeffding's bound, which losses without a bound do not have.

A race ends when one is left, when all that are left are within the margin of the leader (1 %) by
the same tests, or with the documents or the budget. Two stay until {SEEN} documents are measured,
or all, or the budget ends. Of fewer than 20 documents no winner is named, and none where the budget
set some candidate aside. What is set aside is not called worse.

**What holds.** Whichever candidate is the best, it is dropped as worse in at most 5 % of races, and
a wrong sole winner is named in at most 5 %, in the first four tables and in the first three rows of
the last: where methods fail on rare documents, as long as some candidate that is left was seen to.
With the default budget, a third of the grid, a race on 50 documents or fewer names no sole winner
where all are this close, but the best ends lowest.

**What cannot be had.** A failure on one document in n / 3 is on none of n in 5 % of samples: on
none of 20, one in 7; of 60, one in 20; of 100, one in 33. What no candidate shows, no rule sees.
The last four rows are of this kind. Where all others fail on the same documents, the best looks
worse until one of those is met, and is dropped from 20 documents on: one in 20 is on none of 20 in
36 % of samples, one in 30 in 51 %. Where one other fails seldom, it wins until it is seen to fail,
which is why two stay until {SEEN} documents. More documents help, or documents like those that the
model will read.
"""


def _rows(shapes: Iterable[str], documents: Sequence[int], races: int, **how: float) -> None:
    for name in shapes:
        found = [simulate(name, n, races=races, seed=n, **how) for n in documents]
        cells = [one.told(lead="lead" in how) for one in found]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _head(title: str, documents: Sequence[int], *, lead: bool) -> None:
    print(f"\n## {title}\n")
    print(
        f"In % of races: a wrong sole winner is named · the {'best' if lead else 'last candidate'} "
        f"is dropped as worse{' · it is named sole winner · it ends lowest' if lead else ''}; then "
        "the share of the forwards of the whole grid, in %. By number of documents.\n"
    )
    print(f"| | {' | '.join(map(str, documents))} |\n|:--|{'--:|' * len(documents)}")


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--races", type=int, default=RACES)
    races = parser.parse_args().races
    print(TEXT.format(races=races, rounds=", ".join(map(str, rounds(100)[:-1]))), end="")
    few, many = (3, 10, 23, 50), (10, 23, 50, 100)
    spread = "; paired differences of two have a spread of 1.4 % a document"
    _head("All equal" + spread.replace("1.4", "2.8"), few, lead=False)
    _rows(SHAPES, few, races, noise=0.02)
    for title, lead, share in (
        ("One better by 1 %", 0.01, 1.0),
        ("One better by 2 %", 0.02, 1.0),
        ("One better by 2 %, with a budget of a third", 0.02, 1 / 3),
    ):
        _head(title + spread, few, lead=True)
        _rows(SHAPES, few, races, lead=lead, noise=0.01, share=share)
    _head("One better by 2 %; methods fail by 1 nat on rare documents", many, lead=True)
    _rows(RARE, many, races, lead=0.02)


if __name__ == "__main__":
    main()
