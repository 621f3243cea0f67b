"""How much worse each method is than the best at most, at every length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ropewalk.harness.reports.writing import sentences
from ropewalk.harness.reports.writing.tables import across
from ropewalk.harness.stats.decision import MARGIN, Decision, decide, decisions

MARKS = {"best": " (best)", "as good as the best": " (as good)", "worse than another method": " ×"}


def make(frame: pd.DataFrame, *, margin: float = MARGIN) -> pd.DataFrame:
    """Return one row per model, task, length and method.

    ``regret`` is the simultaneous 95 % bound on how much worse the method is than the best,
    relative for perplexity; ``difference`` is its score less the best mean, with its own interval.
    Raises ValueError where no two methods can be compared.
    """
    every = decisions(frame) if margin == MARGIN else decide(frame, margin)
    rows = []
    for decision in every.values():
        of = decision.family
        for name in of.names if of.selection is not None and len(of.names) > 1 else ():
            less = decision.less(name)
            ends = less and less.swapped(relative=of.how.relative)
            row = {
                "measure": of.how.name, "n": of.n, "regret": decision.regret(name),
                "difference": ends and ends.value, "low": ends and ends.low,
                "high": ends and ends.high, "best": decision.best,
                "use": name == decision.recommended, "verdict": _verdict(decision, name),
                "relative": of.how.relative, "status": of.status(name),
            }  # fmt: skip
            rows += [
                {**decision.facts, "scaling": each, **row, "needs_code": each in of.code}
                for each in of.everyone(name)
            ]
    if not rows:
        raise ValueError(
            "no two methods can be compared: it needs two, on the same 3 documents or a trial"
        )
    return pd.DataFrame(rows)


def _verdict(decision: Decision, name: str) -> str:
    if name == decision.best and decision.winner:
        return "best"
    if decision.as_good(name):
        return "as good as the best"
    return "may be the best" if decision.possible(name) else "worse than another method"


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the bounds for people: lengths side by side, per model and task."""

    def text(row: Mapping[str, Any]) -> str:
        bound = sentences.bound(row["regret"], relative=row["relative"], metric=row["metric"])
        return f"≤ {bound}{MARKS.get(row['verdict'], '')}"

    return across(table, text)


def notes(table: pd.DataFrame) -> list[str]:
    """Return what the numbers and marks mean."""
    del table
    return [
        "How much worse than the best of all methods each is at most; the bounds of a length hold "
        "together (95 %). Best: significantly better than every other method; as good: within the "
        "margin; ×: significantly worse than another method, and so not the best."
    ]
