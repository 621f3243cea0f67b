"""Models trained alike from several seeds: their mean, over documents and over seeds kept apart."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.stats.measure import measure
from harness.reports.stats.over_seeds import averaged
from harness.reports.writing import sentences
from harness.reports.writing.tables import across, text

CELLS = ["model", "task", "scaling", "length"]
NONE = "no model comes from several seeds: it needs models named alike but for -1, -2, … at the end"


def make(frame: pd.DataFrame, *, ending: str = r"-\d+$") -> pd.DataFrame:
    """Return a row per model without its ``ending``, a seed, and per task, scaling and length.

    ``score`` is the mean of the seeds (of perplexity the geometric one). ``low`` and ``high`` are
    its interval over documents or trials, these seeds held; ``low_seeds`` and ``high_seeds`` that
    over seeds, these documents held (Student's t); ``least`` and ``most`` the scores of single
    seeds. A cell that a seed lacks has no score. Raises ValueError where no model has two seeds.
    """
    named = frame.assign(
        seed=frame["model"], model=frame["model"].str.replace(ending, "", regex=True)
    )
    counts = named.groupby("model")["seed"].nunique().to_dict()
    named = named[named["model"].map(counts) > 1]
    if named.empty:
        raise ValueError(NONE)
    how = {
        key: measure(rows[rows["seed"] == rows["seed"].iloc[0]])
        for key, rows in named.groupby(["model", "task"], sort=False)
    }
    rows = [
        dict(zip(CELLS, key, strict=True)) | averaged(cell, how[key[:2]], counts[str(key[0])])
        for key, cell in named.groupby(CELLS, sort=False)
    ]
    table = pd.DataFrame(rows)
    return table.assign(relative_length=table["length"] / table["trained_length"])


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return two tables a task, lengths side by side: intervals over documents, and over seeds."""
    many = table["scaling"].nunique() > 1
    label = table["model"] + (", " + table["scaling"] if many else "")
    shown = table.assign(scaling=label, model="over documents or trials, mean of the seeds")
    made = across(shown.assign(text=[text(row) for row in sentences.records(shown)]))
    apart = shown.assign(
        low=table.get("low_seeds"), high=table.get("high_seeds"), model="over seeds"
    )
    made |= across(apart.assign(text=[text(row) for row in sentences.records(apart)]))
    return {title: made[title].rename(columns={"scaling": "model"}) for title in sorted(made)}


def words(table: pd.DataFrame) -> list[str]:
    """Say which model is best in the mean at each length past the window, and if every seed is."""
    told = []
    known = table[(table["status"] == "ok") & (table["length"] > table["trained_length"])]
    for _, rows in known.groupby(["task", "length"], sort=False):
        facts = sorted(sentences.records(rows), key=lambda row: row["score"])
        first, *others = facts if facts[0]["lower"] else facts[::-1]
        if others:
            near = [_name(row, table) for row in others if _meet(row, first)]
            start = f"{sentences.at(first)}, {sentences.named(first, table)}: "
            mean = (
                f"in the mean, single seeds of {sentences.listed(near)} meet its own"
                if near
                else ""
            )
            told.append(f"{start}`{_name(first, table)}` is best {mean or 'with every seed'}.")
    return told


def legend(table: pd.DataFrame) -> list[str]:
    """Say what the two intervals hold for."""
    counts = sentences.listed([str(n) for n in sorted(set(table["seeds"]))]).replace("`", "")
    return [
        f"Means of {counts} seeds. Intervals over documents or trials are for these seeds, those "
        "over seeds (Student's t) for these documents: neither has the other's chance in it."
    ]


def _meet(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether the scores of single seeds overlap."""
    return bool(one["least"] <= other["most"] and other["least"] <= one["most"])


def _name(row: dict[str, Any], table: pd.DataFrame) -> str:
    many = table["scaling"].nunique() > 1
    return f"{row['model']}, {row['scaling']}" if many else str(row["model"])
