"""What a race and a search have in common: rows of perplexities, and the sentence made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ropewalk.harness.reports.verdict import sentence
from ropewalk.harness.stats.paired import Array, Difference, of_means
from ropewalk.tasks._intervals import ratios

ENDS, MARKS = ("score", "low", "high"), ("", "_low", "_high")


def difference(losses: Array, weights: Array | None = None) -> Difference:
    """Return by which share perplexities differ, from differences of summed losses by document."""
    weights = np.ones(len(losses)) if weights is None else weights
    return of_means(losses[:, None], weights[:, None], relative=True)[0]


def columns(kind: str, of: Difference) -> dict[str, float | None]:
    """Return a difference and the ends of its interval as columns of a row."""
    return dict(zip([f"{kind}{mark}" for mark in MARKS], (of.value, of.low, of.high), strict=True))


def perplexity(losses: Array, weights: Array | None = None) -> dict[str, Any]:
    """Return a perplexity, the ends of its interval, and on how many documents it rests."""
    weights = np.ones(len(losses)) if weights is None else weights
    (mean,) = ratios(losses[:, None], weights[:, None])
    return {**dict(zip(ENDS, mean.exp(), strict=True)), "documents": len(losses)}


def decision(
    rows: Iterable[Mapping[str, Any]],
    use: str,
    best: str,
    *,
    winner: bool = False,
    unit: str = "documents",
    window: int | None = None,
    truncation: float | None = None,
) -> str:
    """Return the sentence of the reports on the candidates to choose from.

    A row has ``scaling``, a perplexity, its ``regret``, its ``difference`` from the one to ``use``,
    and where ``truncation`` has a perplexity, its own relative to that.
    """
    order = sorted(rows, key=lambda row: (row["scaling"] != best, row["difference"]))
    return sentence(
        [
            {
                **row, "metric": "perplexity", "lower": True, "relative": True, "unit": unit,
                "compared": row["documents"], "asked": row["documents"],
                **{f"compared_{end}": row[end] for end in ENDS},
                **{f"above{mark}": row[f"difference{mark}"] for mark in MARKS},
                **{f"change{mark}": row.get(f"truncation{mark}") for mark in MARKS},
                "truncation": truncation, "trained_length": window,
                "use": row["scaling"] == use, "best": row["scaling"] == best,
                "winner": winner and row["scaling"] == best,
                "failed": None, "needs_code": False, "cost_low": None, "cost_high": None,
            }
            for row in order
        ]
    )  # fmt: skip
