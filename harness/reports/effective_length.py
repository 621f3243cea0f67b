"""How far each method reads: the longest length without loss of retrieval or of tail perplexity."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.stats.reach import KEPT, reach
from harness.reports.writing import sentences
from harness.reports.writing.tables import heading


def make(frame: pd.DataFrame, *, kept: float = KEPT) -> pd.DataFrame:
    """Return a row per model, task and scaling; a length counts if all from the window to it do.

    Scores where higher is better hold while ``kept`` is left of the model's own score, that of
    its unscaled embedding at the longest length inside the window; ``low`` and ``high`` are the
    lengths up to which the score's whole interval, and any of it, lies there. Perplexity holds
    while it is no higher than there, document by document; ``low`` is the length up to which that
    is significant, ``high`` that up to which it is not refuted. Empty: neither inside the window
    nor at the first length beyond. What a method costs inside the window is in ``short_cost``.
    """
    return reach(frame, kept=kept)


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the table for people, one per model and task, the furthest method first."""
    made = {}
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        ordered = rows.sort_values(
            ["effective_length", "low", "high"], ascending=False, kind="stable"
        )
        texts = [
            {
                "scaling": row["scaling"],
                "effective length": f"{_length(row, 'effective_length')}{_lacking(row)}",
                "at least (95 %)": _length(row, "low"),
                "at most (95 %)": _length(row, "high"),
            }
            for row in sentences.records(ordered)
        ]
        made[heading(str(task), rows["metric"].iloc[0], str(model))] = pd.DataFrame(texts)
    return made


def _length(row: dict[str, Any], end: str) -> str:
    """Return "1024 (4×)", "≥ 2048 (8×)" at the longest length measured, "none" below the window."""
    if row[end] is None:
        return "none"
    text = f"{row[end]} ({row[end] / row['trained_length']:.3g}×)"
    return f"≥ {text}" if row[end] == row["longest"] else text


def _lacking(row: dict[str, Any]) -> str:
    """Return "(20 of 23)" where units of a length up to there lack."""
    return f" ({row['n']} of {row['asked']})" if row["n"] < row["asked"] else ""


def words(table: pd.DataFrame) -> list[str]:
    """Say which methods reach furthest, by each measure."""
    told = []
    for _, rows in table.groupby(["model", "task"], sort=False):
        facts = sentences.records(rows)
        first = facts[0]
        furthest_length = max((row["effective_length"] or 0 for row in facts), default=0)
        furthest = [row for row in facts if row["effective_length"] == furthest_length]
        least = any(row["longest"] == furthest_length for row in furthest)
        measured = sentences.named(first, table)
        model = f"{first['model']}, " if table["model"].nunique() > 1 else ""
        if not furthest:
            told.append(f"{model}{measured}: no method holds even inside the window.")
            continue
        known = first["own_scaling"] in {row["scaling"] for row in facts}
        own = f"`{first['own_scaling']}`" if known else "its model as it was trained"
        verb = "holds" if len(furthest) == 1 else "hold"
        names = sentences.listed([row["scaling"] for row in furthest])
        told.append(
            f"{model}{measured}: {names} {verb} furthest, to "
            f"{'at least ' if least else ''}{furthest_length} tokens "
            f"({_intervals(furthest)}){_on(furthest)}; {_rule(first, own)}."
        )
    return told


def _on(furthest: list[dict[str, Any]]) -> str:
    """Return on how many units, and which methods lack some of them."""
    first = furthest[0]
    few = [f"`{row['scaling']}`{_lacking(row)}" for row in furthest if row["n"] < row["asked"]]
    lacking = f", but {', '.join(few)}" if few else ""
    return f", on {sentences.counted(first['asked'], first['units'])}{lacking}"


def _intervals(furthest: list[dict[str, Any]]) -> str:
    """Return from where to where each effective length may lie, given its intervals."""
    by_interval: dict[str, list[str]] = {}
    for row in furthest:
        low = row["low"] or "less than the window"
        more = " or more" if row["high"] == row["longest"] else ""
        by_interval.setdefault(f"{low} to {row['high']}{more}", []).append(row["scaling"])
    if len(by_interval) == 1:
        return f"interval: {next(iter(by_interval))}"
    each = (f"{text} for {sentences.listed(names)}" for text, names in by_interval.items())
    return f"intervals: {'; '.join(each)}"


def _rule(row: dict[str, Any], own: str) -> str:
    """Return what holding means here, against the score of ``own``."""
    own += " inside the window"
    if row["least_score"] is None:
        return f"to hold is to be no higher than {own}, on the same {row['units']}"
    kept = row["least_score"] / row["own_score"]
    return f"to hold is to keep {100 * kept:.3g} % of the score of {own}"
