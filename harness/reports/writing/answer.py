"""Which method is best at which length, and how sure that is: the first thing that is read."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.stats.ranking import choice
from harness.reports.writing import sentences

MOST = 4  # methods that a cell names


def answer(best: pd.DataFrame) -> list[dict[str, Any]]:
    """Return, for every model, its tasks and a row a length, of the table of ``best``.

    A row has the length, the methods that are best or not distinguished from it on every task, and
    a task the best, its score, and what is known of its lead.
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
                "names": _names(choice(list(known.values()))),
                "tasks": [_task(known[task]) if task in known else None for task in tasks],
            })  # fmt: skip
        heads = [_head(rows[rows["task"] == task].iloc[0]) for task in tasks]
        shown.append({"model": model, "tasks": heads, "lengths": lengths})
    return shown


def _head(row: pd.Series[Any]) -> dict[str, str]:
    return {"task": row["task"], "measure": row["measure"], "better": f"{row['better']} is better"}


def _task(row: dict[str, Any]) -> dict[str, Any]:
    """Return what one task says at one length."""
    return {
        "best": _names([row["best"], *(row["same"] or [])]),
        "score": sentences.score(row),
        "n": sentences.counted(row["n"], row["units"]),
        "tied": len(row["tied"] or []),
        "enough": row["enough"] is not False,
        "told": _lead(row),
    }


def _lead(row: dict[str, Any]) -> str:
    """Say by how much the best leads, or from which methods it is not distinguished."""
    if row["runner_up"] is None:
        return "" if row["same"] else "the only method"
    if row["difference"] is None:
        return f"before {row['runner_up']}; the two cannot be compared sample by sample"
    if row["tied"] is not None and row["enough"] is False:
        return f"too few samples to distinguish it from {_names(row['tied'])}"
    if row["tied"] is not None:
        return f"not distinguished from {_names(row['tied'])}"
    side = "below" if row["difference"] < 0 else "above"
    chance = sentences.chance(row["p"])
    return f"{sentences.gap(row)} {side} {row['runner_up']}, {chance}"


def _names(names: list[str]) -> str:
    """Return "a, b, c", of many the first and how many more."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST + 1 else ""
    return ", ".join(names[:MOST] if more else names) + more
