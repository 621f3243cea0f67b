"""Which method to use at which length, by how much it leads, or that the data cannot tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from harness.reports import _words
from harness.reports._ranking import choice, ranking
from harness.reports._tables import heading


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model, task and length with the best score and what it leads by.

    ``tied`` are the methods that the samples cannot tell from the best: the probabilities of all
    pairs at a length are corrected together (Holm), so that the choice of the best is paid for.
    ``difference`` is the best less the runner-up, relative for perplexity; ``p`` is corrected.
    """
    return ranking(frame)


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the table for people, one per model and task."""
    made = {}
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        texts = [
            {
                "length": f"{row['length']} ({row['stretch']:.3g}×)",
                "best": row["best"],
                "score [95 %]": _words.score(row),
                "runner-up": row["runner_up"],
                "its score [95 %]": ""
                if row["runner_up"] is None
                else _words.score(row, "runner_up_"),
                "cannot be told from": row["tied"],
            }
            for row in _words.records(rows)
        ]
        made[heading(str(task), rows["metric"].iloc[0], str(model))] = pd.DataFrame(texts)
    return made


def words(table: pd.DataFrame) -> list[str]:
    """Say the same in sentences, and for every length what is best on all tasks together."""
    told = []
    many = table["model"].nunique() > 1
    for (model, _), rows in table.groupby(["model", "length"], sort=False):
        facts = _words.records(rows)
        start = _words.at(facts[0]) + (f", {model}:" if many else "")
        told.append(" ".join([start, "; ".join(map(_clause, facts)) + "." + _choice(facts)]))
    return told


def _clause(row: Mapping[Any, Any]) -> str:
    """Return what is known of one task at one length."""
    if row["metric"] == "accuracy" and row["score"] == 0:
        return f"no method has a {row['measure']} above 0 ({row['n']} {row['units']})"
    extreme = "lowest" if row["better"] == "lower" else "highest"
    first = f"`{row['best']}` has the {extreme} {row['measure']}, {_words.score(row)}"
    if row["runner_up"] is None:
        every = "all methods are the same here" if row["same"] else "it stands alone"
        return f"{first} ({every})"
    tied = row["tied"].split(", ") if row["tied"] else []
    second = f"`{row['runner_up']}` {_words.score(row, 'runner_up_')}"
    if row["difference"] is None:
        return f"{first}, before {second}; scores that are no mean of samples are not compared"
    if not tied:
        side = "below" if row["better"] == "lower" else "above"
        sure = f"{row['n']} {row['units']}, {_words.chance(row['p'])}"
        return f"{first}: {_words.gap(row)} {side} {second} ({sure})"
    told = f"{first}, but {row['n']} {row['units']} cannot tell it from {_words.listed(tied)}"
    needed = row["needed"]
    if row["runner_up"] in tied and needed is not None and needed > row["n"]:
        told += f" (about {needed:,.0f} would separate `{row['runner_up']}`, if it differs as seen)"
    return told


def _choice(facts: list[dict[str, Any]]) -> str:
    """Return which methods no task speaks against."""
    if len(facts) < 2 or all(row["runner_up"] is None for row in facts):
        return ""
    kept = choice(facts)
    if not kept:
        return " No method is best on every task."
    return f" On every task: {_words.listed(kept, last='or')}."
