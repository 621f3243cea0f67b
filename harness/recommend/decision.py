"""What a race and a search have in common: scores, their differences, and the sentence of them.

A loss is what a method loses on a document or a trial: nats per token, or of a share, minus it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri

from ropewalk.harness.reports.verdict import sentence
from ropewalk.harness.stats.measure import Measure
from ropewalk.harness.stats.paired import Array, Difference, of_means, of_shares, shares_of
from ropewalk.harness.stats.selection import Selection, select_means, select_shares
from ropewalk.tasks._intervals import proportion, ratios

ENDS, MARKS = ("score", "low", "high"), ("", "_low", "_high")
PERPLEXITY = Measure("perplexity", "exp", "tail")


def difference(
    losses: Array, weights: Array | None = None, how: Measure = PERPLEXITY
) -> Difference:
    """Return by how much scores differ, from the differences of summed losses by unit.

    Perplexities differ by a share of the second, shares of hits by their difference.
    """
    if how.share:
        return of_shares(-losses[:, None])[0]
    weights = np.ones(len(losses)) if weights is None else weights
    return of_means(losses[:, None], weights[:, None], relative=True)[0]


def lowest(losses: Array, level: float, how: Measure) -> list[float | None]:
    """Return the lower ends of the two-sided intervals of mean losses, shape (units, columns)."""
    if how.share:
        center, error = shares_of(losses)
        ends: list[float | None] = (center - float(ndtri((1 + level) / 2)) * error).tolist()
        return ends
    return [mean.interval(level)[0] for mean in ratios(losses, np.ones((len(losses), 1)))]


def select(losses: Array, how: Measure, level: float, candidates: int) -> Selection | None:
    """Compare methods by their losses, shape (units, methods); see ``select_means``."""
    if how.share:
        return select_shares(-losses, level=level, candidates=candidates)
    return select_means(losses, np.ones(len(losses)), level=level, candidates=candidates)


def score(losses: Array, weights: Array | None = None, how: Measure = PERPLEXITY) -> dict[str, Any]:
    """Return a score, the ends of its interval, and on how many documents or trials it rests."""
    if how.share:
        hits = 0.0 - float(losses.sum())
        ends: Sequence[Any] = (hits / len(losses), *proportion(hits, len(losses)))
    else:
        weights = np.ones(len(losses)) if weights is None else weights
        (mean,) = ratios(losses[:, None], weights[:, None])
        ends = mean.exp()
    return {**dict(zip(ENDS, ends, strict=True)), "n": len(losses)}


def decision(
    rows: Iterable[Mapping[str, Any]],
    use: str,
    best: str,
    *,
    winner: bool = False,
    how: Measure = PERPLEXITY,
    unit: str | None = None,
    window: int | None = None,
    truncation: float | None = None,
    gains: Sequence[str] = (),
) -> str:
    """Return the sentence of the reports on the candidates to choose from.

    A row has ``scaling``, a score, its ``regret``, its ``difference`` from the one to ``use``, and
    where ``truncation`` has a score, its own relative to that. ``gains`` are the retrieval tasks
    that gain by the longer text.
    """
    sign = 1 if how.lower else -1
    order = sorted(rows, key=lambda row: (row["scaling"] != best, sign * row["difference"]))
    return sentence(
        [
            {
                **row, "metric": how.metric, "lower": how.lower, "relative": how.relative,
                "unit": unit or how.units, "compared": row["n"], "asked": row["n"],
                **{f"compared_{end}": row[end] for end in ENDS},
                **{f"above{mark}": row[f"difference{mark}"] for mark in MARKS},
                **{f"change{mark}": row.get(f"truncation{mark}") for mark in MARKS},
                "truncation": truncation, "trained_length": window,
                "use": row["scaling"] == use, "best": row["scaling"] == best,
                "winner": winner and row["scaling"] == best,
                "failed": None, "needs_code": False, "cost_low": None, "cost_high": None,
            }
            for row in order
        ],
        gains,
    )  # fmt: skip
