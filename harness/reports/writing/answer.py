"""Which method to use at which length, and by how much that can be wrong: what is read first."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.stats.measure import SHARES
from harness.reports.writing import sentences


def answer(best: pd.DataFrame) -> list[dict[str, Any]]:
    """Return, for every model, its tasks and one row per length, of the table of ``best``.

    A row has the length, the one method for all tasks, and per task the method to use, its score,
    and its bound or its lead.
    """
    shown = []
    for model, rows in best.groupby("model", sort=False):
        tasks = list(rows["task"].unique())
        lengths = []
        for _, facts in rows.groupby("length", sort=True):
            known = {row["task"]: row for row in sentences.records(facts)}
            first = next(iter(known.values()))
            lengths.append({
                "length": int(first["length"]),
                "relative": sentences.times(first),
                "beyond": not sentences.inside(first),
                "use": first["overall"] if len(tasks) > 1 else first["use"],
                "bound": _overall(first) if len(tasks) > 1 else _verdict(first),
                "tasks": [_task(known[task]) if task in known else None for task in tasks],
            })  # fmt: skip
        heads = [_head(rows[rows["task"] == task].iloc[0]) for task in tasks]
        shown.append({"model": model, "tasks": heads, "lengths": lengths})
    return shown


def _head(row: pd.Series[Any]) -> dict[str, str]:
    return {"task": row["task"], "measure": row["measure"], "better": f"{row['better']} is better"}


def _overall(row: dict[str, Any]) -> str:
    """Return the bound of the method for all tasks: on any of them, than the best there."""
    if row["overall_regret"] is None:
        return ""
    return f"at most {sentences.percent(row['overall_regret'])} or points worse"


def _task(row: dict[str, Any]) -> dict[str, Any]:
    """Return what one task says at one length."""
    use = f"{row['use']} = {' = '.join(row['same'])}" if row["same"] else row["use"]
    return {
        "use": use if len(row["same"] or []) < 3 else f"{row['use']} and {len(row['same'])} equal",
        "score": sentences.score(row),
        "n": sentences.counted(row["n"], row["units"]),
        "told": _verdict(row),
        "more": "; ".join(part for part in (_best(row), _gain(row)) if part),
    }


def _verdict(row: dict[str, Any]) -> str:
    """Return the lead of a winner, or the bound on the regret of the method to use."""
    if row["metric"] in SHARES and row["best_score"] == 0:
        return "no method scores above 0"
    if row["next"] is None:
        return "" if row["same"] else "the only method"
    if row["winner"] and row["use"] == row["best"]:
        side = "below" if row["better"] == "lower" else "above"
        return f"winner: {sentences.gap(row, 'lead')} {side} {row['next']}, the next"
    if row["regret"] is None:
        return "too few samples for a bound"
    return f"at most {sentences.bound(row)} worse than the best of {row['methods']}"


def _best(row: dict[str, Any]) -> str:
    """Return the method of the best score, where it is not the one to use."""
    if row["use"] == row["best"] or row["best_score"] == row["score"]:
        return ""
    why = " needs modelling code and" if row["best"] in (row["code"] or []) else ""
    return f"{row['best']}{why} has {sentences.score(row, 'best_')}"


def _gain(row: dict[str, Any]) -> str:
    """Return the difference from truncation."""
    if row["gain"] is None:
        return ""
    told = sentences.signed(row["gain"], row["gain_low"], row["gain_high"])
    return f"{told} against truncation to {row['trained_length']:,} tokens"
