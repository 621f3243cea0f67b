#!/usr/bin/env python
"""How often intervals cover and equal methods have a sole winner, by shape of the losses.

.venv/bin/python -m scripts.simulate > results/statistics.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.reports.stats.paired import ENOUGH, SURE, holm, of_means, signs

Array = NDArray[Any]
Random = np.random.Generator
Draw = Callable[[Random, tuple[int, int]], tuple[Array, Array]]  # losses less their mean, tokens
DOCUMENTS = (5, 10, 20, 23, 40, 60)
METHODS = (2, 5, 12, 25)
ROUNDS = 2000
FEW_ROUNDS = 200
FALSE = 0.06


def alike(draw: Callable[[Random, tuple[int, int]], Array]) -> Draw:
    """Give every document one weight."""
    return lambda rng, size: (draw(rng, size), np.ones(size))


def by_length(draw: Callable[[Random, tuple[int, int]], Array]) -> Draw:
    """Weight documents by lengths that differ about tenfold (lognormal, sigma 0.5)."""
    return lambda rng, size: (draw(rng, size), np.exp(0.5 * rng.standard_normal(size)))


def lost(share: float, nats: float, noise: float) -> Callable[[Random, tuple[int, int]], Array]:
    """Lose a share of the documents by so many nats."""
    return lambda rng, size: (
        noise * rng.standard_normal(size) + nats * ((rng.random(size) < share) - share)
    )


def lognormal(sigma: float) -> Callable[[Random, tuple[int, int]], Array]:
    """Return lognormal losses less their mean."""
    return lambda rng, size: np.exp(sigma * rng.standard_normal(size)) - math.exp(sigma**2 / 2)


def with_length(sigma: float, together: float) -> Draw:
    """Draw lognormal losses that go with the length of the document, with this correlation."""
    apart = math.sqrt(1 - together**2)
    mean = math.exp(((0.5 + sigma * together) ** 2 + (sigma * apart) ** 2) / 2 - 0.125)

    def draw(rng: Random, size: tuple[int, int]) -> tuple[Array, Array]:
        length = rng.standard_normal(size)
        loss = np.exp(sigma * (together * length + apart * rng.standard_normal(size)))
        return loss - mean, np.exp(0.5 * length)

    return draw


def lost_exponentially(rng: Random, size: tuple[int, int]) -> Array:
    """Lose one document in five by an exponential amount, 1 nat in the mean."""
    lost = (rng.random(size) < 0.2) * rng.exponential(1, size)
    return np.asarray(0.3 * rng.standard_normal(size) + lost - 0.2)


SHAPES: dict[str, Callable[[Random, tuple[int, int]], Array]] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "Student's t, 4 degrees": lambda rng, size: rng.standard_t(4, size),
    "gamma, shape 4": lambda rng, size: rng.gamma(4, 1, size) - 4,
    "exponential": lambda rng, size: rng.exponential(1, size) - 1,
    "lognormal, sigma 0.5": lognormal(0.5),
    "lognormal, sigma 1": lognormal(1),
    "20 % lost by 1 nat, noise 0.3": lost(0.2, 1, 0.3),
    "20 % lost by 1 nat, noise 0.1": lost(0.2, 1, 0.1),
}
# Not looked at when the rule was made.
FRESH: dict[str, Callable[[Random, tuple[int, int]], Array]] = {
    "Laplace": lambda rng, size: rng.laplace(0, 1, size),
    "Weibull, shape 0.8": lambda rng, size: rng.weibull(0.8, size) - math.gamma(1 + 1 / 0.8),
    "inverse normal, shape 1": lambda rng, size: rng.wald(1, 1, size) - 1,
    "30 % lost by 0.5 nat, noise 0.2": lost(0.3, 0.5, 0.2),
}
CASES: dict[str, Draw] = {
    **{f"{name}; equal lengths": alike(draw) for name, draw in SHAPES.items()},
    **{f"{name}; by length": by_length(draw) for name, draw in SHAPES.items()},
    "lognormal, sigma 0.5; longer is easier": with_length(0.5, -0.5),
    "lognormal, sigma 0.75; longer is harder": with_length(0.75, 0.5),
    "20 % lost exponentially, noise 0.3; equal lengths": alike(lost_exponentially),
    **{f"{name}; equal lengths (fresh)": alike(draw) for name, draw in FRESH.items()},
    **{f"{name}; by length (fresh)": by_length(draw) for name, draw in FRESH.items()},
}
RARE: dict[str, Draw] = {  # what most samples of few documents do not hold
    "10 % lost by 2 nats, noise 0.1": alike(lost(0.1, 2, 0.1)),
    "5 % lost by 3 nats, noise 0.05": alike(lost(0.05, 3, 0.05)),
}


@dataclass(frozen=True)
class Found:
    """Shares of rounds: the interval covers, a method is named better or worse."""

    covered: float
    named: float


def simulate(draw: Draw, documents: int, *, rounds: int, seed: int) -> Found:
    """Draw the losses of one method, or the differences of two, whose mean is 0."""
    losses, tokens = draw(np.random.default_rng(seed), (documents, rounds))
    found = of_means(losses * tokens, tokens)
    inside = [
        low is None or high is None or low <= 0 <= high
        for low, high in (one.interval() for one in found)
    ]
    named = [one.enough and one.p is not None and one.p < SURE for one in found]
    return Found(float(np.mean(inside)), float(np.mean(named)))


def family(
    collapsing: int, methods: int, documents: int, *, rounds: int, seed: int, lead: float = 0
) -> tuple[float, float]:
    """Return how often a sole winner is named, and any pair told apart, of methods of one mean.

    The first so many collapse on one document in five; ``lead`` is that of the last method, and
    then only its win counts.
    """
    rng, sole, told = np.random.default_rng(seed), 0, 0
    pairs = np.array([(i, j) for i in range(methods) for j in range(i)]).T
    for _ in range(rounds):
        losses = 0.1 * rng.standard_normal((documents, methods))
        losses[:, :collapsing] += (rng.random((documents, collapsing)) < 0.2) - 0.2
        losses[:, -1] -= lead
        sure = _sure(losses[:, pairs[0]] - losses[:, pairs[1]])
        told += bool(sure.any())
        best = int(losses.mean(axis=0).argmin())
        if lead == 0 or best == methods - 1:
            sole += bool(sure[(pairs == best).any(axis=0)].all())
    return sole / rounds, told / rounds


def _sure(apart: Array) -> Array:
    """Return which pairs the verdict tells apart; what the signs do not tell is not resampled."""
    lower, higher = (apart < 0).sum(axis=0), (apart > 0).sum(axis=0)
    by_signs = [signs(*row) for row in zip(lower.tolist(), higher.tolist(), strict=True)]
    if len(apart) < ENOUGH or min(by_signs) * len(by_signs) >= SURE:
        return np.zeros(len(by_signs), dtype=bool)
    open_still = np.array(by_signs) < SURE
    probabilities = np.ones(len(by_signs))
    found = of_means(apart[:, open_still], np.ones((len(apart), 1)))
    probabilities[open_still] = [1.0 if one.p is None else one.p for one in found]
    return np.array([p is not None and p < SURE for p in holm(probabilities.tolist())])


TEXT = f"""\
# How often the statistics of the reports err

Made by `python -m scripts.simulate` with the code that the reports run: every value is a share of
simulated samples of documents, in %, {ROUNDS} a cell ({FEW_ROUNDS} where many methods are
compared), so that a share of 5 % is known to about 1 point (3 points).

A method is called better than another where the weighted mean of the differences by document
(with the studentised bootstrap, and also if the document that speaks most against it were met
once more) and the exact sign test are both below 5 %, corrected for all pairs of methods (Holm),
on {ENOUGH} documents or more. That says two things: that it is better on most documents, which no
shape of the losses makes false more often than in 5 % of samples; and that its mean is better, of
which the tables tell how often it is said of equal means.

Losses by length: documents differ in length about tenfold (lognormal, sigma 0.5), and the mean is
by tokens. Shapes marked fresh were not looked at when the rule was made.
"""
RARELY = """\
**What no rule can do.** A failure on a share s of all documents is on none of n with the
probability (1 - s)^n: 31 % for one in twenty and 23 documents. In such a sample the method that
will fail is better on every document, and nothing in it shows that its mean is not. "Better on 23
of 23 documents and in the mean" is true of what was measured, and of most documents; of the mean
of all documents it is sure only as far as no failure is rarer than about one in n / 3, as `best`
says under its sentences.
"""


def _head(numbers: Sequence[int]) -> str:
    return f"| | {' | '.join(map(str, numbers))} |\n|:--|{'--:|' * len(numbers)}"


def alone() -> None:
    """Print how one interval covers, and how often one of two equal methods is named."""
    every = {**CASES, **RARE}
    made = {
        (name, n): simulate(draw, n, rounds=ROUNDS, seed=n)
        for name, draw in every.items()
        for n in DOCUMENTS
    }
    enough = [n for n in DOCUMENTS if n >= ENOUGH]
    print(f"## The 95 % interval covers the mean, by number of documents\n\n{_head(DOCUMENTS)}")
    for name in every:
        values = [f"{100 * made[name, n].covered:.1f}" for n in DOCUMENTS]
        print(f"| {name} | {' | '.join(values)} |")
    title = "Two methods of equal mean: one is named the better, by number of documents"
    print(f"\n## {title}\n\nOf fewer than {ENOUGH} none is.\n\n{_head(enough)}")
    for name in every:
        values = [f"{100 * made[name, n].named:.1f}" for n in enough]
        print(f"| {name} | {' | '.join(values)} |")
    print(f"\n{RARELY}")


MANY = """\
Of many methods that fail rarely one is likely to have met none of its failures: the more of them,
the more often some pair is told apart of which this is true, though no sole winner is named.
"""


def together() -> None:
    """Print how often a sole winner is named of many methods, equal ones and one that leads."""
    enough = [n for n in DOCUMENTS if n >= ENOUGH]
    for title, collapsing, lead in (
        ("Equal methods", 0, 0.0),
        ("Methods of equal mean, the first collapses on one document in five", 1, 0.0),
        ("Methods of equal mean, half of them collapse on one document in five", -2, 0.0),
        ("Power: the last leads by one standard deviation of the differences", 0, 0.1 * 2**0.5),
        ("Power: the last leads by half a standard deviation", 0, 0.05 * 2**0.5),
    ):
        what = "A sole winner is named (any two are told apart), by number of documents"
        print(f"## {title}\n\n{what}.\n\n{_head(enough)}")
        for methods in METHODS:
            first = methods // 2 if collapsing < 0 else collapsing
            pairs = [
                family(first, methods, n, rounds=FEW_ROUNDS, seed=n, lead=lead) for n in enough
            ]
            texts = [f"{100 * sole:.1f} ({100 * told:.1f})" for sole, told in pairs]
            print(f"| {methods} methods | {' | '.join(texts)} |")
        print()


def main() -> None:
    """Print the tables in Markdown."""
    print(TEXT)
    alone()
    together()
    print(MANY)


if __name__ == "__main__":
    main()
