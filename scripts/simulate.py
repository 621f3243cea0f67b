#!/usr/bin/env python
"""How often intervals cover and equal methods have a sole winner, by shape of the losses.

.venv/bin/python -m scripts.simulate > results/statistics.md
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from harness.reports.stats.paired import ENOUGH, SURE, holm
from tasks._intervals import LEVEL, ratios

Array = NDArray[Any]
Random = np.random.Generator
Draw = Callable[[Random, tuple[int, int]], tuple[Array, Array]]  # losses less their mean, tokens
DOCUMENTS = (5, 10, 16, 23, 40, 60)
METHODS = (2, 5, 12, 25)
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


def longer_is_easier(rng: Random, size: tuple[int, int]) -> tuple[Array, Array]:
    """Draw lognormal losses (sigma 0.5) that go with the length, correlation -0.5."""
    length = rng.standard_normal(size)
    loss = np.exp(0.5 * (-0.5 * length + math.sqrt(0.75) * rng.standard_normal(size)))
    return loss - math.exp(0.125 - 0.125), np.exp(0.5 * length)


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
CASES: dict[str, Draw] = {
    **{f"{name}; equal lengths": alike(draw) for name, draw in SHAPES.items()},
    **{f"{name}; by length": by_length(draw) for name, draw in SHAPES.items()},
    "lognormal, sigma 0.5; longer is easier": longer_is_easier,
    "5 % lost by 3 nats": alike(lost(0.05, 3, 0.05)),
}
NAMED = [name for name in CASES if not name.startswith("5 %")]
COVERED = [name for name in NAMED if "noise 0.1" not in name]  # 10 documents hold none in 11 %


@dataclass(frozen=True)
class Found:
    """Shares of rounds: the interval covers, a method is named better or worse."""

    covered: float
    named: float


def probabilities(losses: Array, tokens: Array) -> tuple[Array, Array]:
    """Return of every column the mean's probability and that of the verdict's rule."""
    n = len(losses)
    sums = losses * tokens
    value = sums.sum(axis=0) / tokens.sum(axis=0)
    error, degrees, below, above = ratios(sums, tokens)
    toward = np.where(value > 0, below, above)
    mean = 2 * special.stdtr(degrees, -np.abs(value) / (error * toward))
    lower, higher = (losses < 0).sum(axis=0), (losses > 0).sum(axis=0)
    signs = np.minimum(1, 2 * special.bdtr(np.minimum(lower, higher), n, 0.5))
    agree = (lower > higher) == (value < 0)
    rule = np.where(agree & (n >= ENOUGH), np.maximum(mean, signs), 1.0)
    return mean, rule


def simulate(draw: Draw, documents: int, *, rounds: int, seed: int) -> Found:
    """Draw the losses of one method, or the differences of two, whose mean is 0."""
    mean, rule = probabilities(*draw(np.random.default_rng(seed), (documents, rounds)))
    return Found(float((mean >= 1 - LEVEL).mean()), float((rule < SURE).mean()))


def family(
    collapsing: int, methods: int, documents: int, *, rounds: int, seed: int, lead: float = 0
) -> tuple[float, float]:
    """Return how often a sole winner is named, and any pair told apart, of methods of one mean.

    The first so many collapse on one document in five; ``lead`` is that of the last method.
    """
    rng, sole, told = np.random.default_rng(seed), 0, 0
    pairs = [(i, j) for i in range(methods) for j in range(i)]
    for _ in range(rounds):
        losses = 0.1 * rng.standard_normal((documents, methods))
        losses[:, :collapsing] += (rng.random((documents, collapsing)) < 0.2) - 0.2
        losses[:, -1] -= lead
        apart = np.stack([losses[:, i] - losses[:, j] for i, j in pairs], axis=1)
        sure = np.array(holm(probabilities(apart, np.ones_like(apart))[1].tolist())) < SURE
        told += bool(sure.any())
        best = int(losses.mean(axis=0).argmin())
        if lead == 0 or best == methods - 1:
            sole += all(sure[place] for place, pair in enumerate(pairs) if best in pair)
    return sole / rounds, told / rounds


def main() -> None:
    """Print the tables in Markdown."""
    head = f"| | {' | '.join(map(str, DOCUMENTS))} |\n|:--|{'--:|' * len(DOCUMENTS)}"
    for title, place in (("The 95 % interval covers", 0), ("Two equal methods: one named", 1)):
        print(f"### {title}, % of 2000 rounds, by number of documents\n\n{head}")
        for name, draw in CASES.items():
            made = [simulate(draw, n, rounds=2000, seed=n) for n in DOCUMENTS]
            values = [(found.covered, found.named)[place] for found in made]
            print(f"| {name} | {' | '.join(f'{100 * value:.1f}' for value in values)} |")
        print()
    for title, facts in (
        ("No difference", (0, 0.0)), ("The first collapses on one document in five", (1, 0.0)),
        ("The last leads by one standard deviation (power)", (0, 0.1)),
        ("The last leads by half a standard deviation (power)", (0, 0.05)),
    ):  # fmt: skip
        print(f"### {title}: a sole winner named (any two told apart), % of 200 rounds\n\n{head}")
        for methods in METHODS:
            pairs = [
                family(facts[0], methods, n, rounds=200, seed=n, lead=facts[1]) for n in DOCUMENTS
            ]
            texts = [f"{100 * sole:.1f} ({100 * told:.1f})" for sole, told in pairs]
            print(f"| {methods} methods | {' | '.join(texts)} |")
        print()


if __name__ == "__main__":
    main()
