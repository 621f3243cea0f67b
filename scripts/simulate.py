#!/usr/bin/env python
"""How often the statistics of the reports are wrong, and what they can decide, by simulation.

OMP_NUM_THREADS=1 .venv/bin/python -m scripts.simulate > results/statistics.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.stats.paired import of_means
from harness.stats.selection import select_means, select_shares

Array = NDArray[Any]
Random = np.random.Generator
Draw = Callable[[Random, tuple[int, int]], tuple[Array, Array]]  # losses less their mean, tokens
DOCUMENTS = (8, 12, 20, 40, 60)
METHODS = (2, 5, 12, 25)
ROUNDS = 2000  # of a single comparison
SELECTIONS = {2: 1500, 5: 600, 12: 300, 25: 200}  # by number of methods
LEAD = 0.2  # standard deviations by which the best method of the table on regret is better


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


MODERATE: dict[str, Callable[[Random, tuple[int, int]], Array]] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "Student's t, 4 degrees": lambda rng, size: rng.standard_t(4, size),
    "Laplace": lambda rng, size: rng.laplace(0, 1, size),
    "gamma, shape 4": lambda rng, size: rng.gamma(4, 1, size) - 4,
    "exponential": lambda rng, size: rng.exponential(1, size) - 1,
    "lognormal, sigma 0.5": lognormal(0.5),
    "20 % lost by 1 nat, noise 0.3": lost(0.2, 1, 0.3),
}
EXTREME: dict[str, Callable[[Random, tuple[int, int]], Array]] = {
    "lognormal, sigma 1": lognormal(1),
    "20 % lost by 1 nat, noise 0.1": lost(0.2, 1, 0.1),
    "20 % lost exponentially, noise 0.3": lost_exponentially,
}
RARE: dict[str, Callable[[Random, tuple[int, int]], Array]] = {
    "10 % lost by 2 nats, noise 0.1": lost(0.1, 2, 0.1),
    "5 % lost by 3 nats, noise 0.05": lost(0.05, 3, 0.05),
}
OTHER: dict[str, Callable[[Random, tuple[int, int]], Array]] = {
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
    """Of selections among many methods, shares of rounds, and the regret in the median.

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
        lead: of the one best method, drawn anew in each round, in standard deviations of the
            paired difference of two methods.
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


def main() -> None:
    """Print the tables in Markdown."""
    print(TEXT)
    with ProcessPoolExecutor(2) as pool:
        singles(pool)
        selections(pool)
    retrieval()
    print(RARELY)


if __name__ == "__main__":
    main()
