"""Models trained alike from several seeds, less one of them, seed by seed."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.writing import sentences
from harness.reports.writing.tables import across
from harness.stats.cells import records
from harness.stats.measure import SHARES
from harness.stats.paired import NO_DIFFERENCE
from harness.stats.seeds import ENDING, paired_seeds

TOGETHER = True  # models are compared: one table has them all
LEGEND = (
    "The mean over seeds of the difference on the same documents or trials, with its own 95 % "
    "interval over seeds (Student's t; the documents are held fixed). ?: no significant difference "
    "(5 %, corrected for all comparisons at a length by Holm's method)."
)
FAILED = (
    "†: the better one failed on documents, trials or seeds that the other has; what is left "
    "favours it, so it is not called better."
)
NONE = (
    "Not compared: without two seeds that both have, asked the same questions, with a document or "
    "trial that all have and scores that are made of these."
)
EQUAL = "Without an interval: equal with every seed, from which none follows."


def make(frame: pd.DataFrame, *, baseline: str | None = None, ending: str = ENDING) -> pd.DataFrame:
    """Return a row per model without its ``ending``, scaling, task and length, less the baseline.

    The ``baseline`` is a model, or ``MODEL · SCALING`` of a model under several scalings; by
    default the first. Differences of perplexity are relative (of its logarithm, by seed), others
    in the score's unit; ``single`` are those of the seeds, ``better_with`` how many favour the
    model. Raises ValueError where no model has two seeds, or none is the baseline.
    """
    return paired_seeds(frame, baseline, ending)


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return a table a task, lengths side by side."""
    windows = table["trained_length"].map(", window of {:,} tokens".format)
    window = windows if windows.nunique() > 1 else ""
    shown = table.assign(
        scaling=table["name"],
        model="less " + table["baseline"] + window,
        text=[_text(row) for row in records(table)],
    )
    made = across(shown)
    return {title: of.rename(columns={"scaling": "model"}) for title, of in made.items()}


def words(table: pd.DataFrame) -> list[str]:
    """Say at each length past the window what is better and what is worse than the baseline."""
    told = []
    past = table[table["length"] > table["trained_length"]]
    for _, rows in past.groupby(["task", "trained_length", "length"], sort=False):
        first = records(rows)[0]
        parts = []
        for verdict in ("better", "worse"):
            names = list(rows["name"][rows["verdict"] == verdict])
            if names:
                parts.append(f"{sentences.listed(names)} {sentences.are(len(names))} {verdict}")
        for verdict in (NO_DIFFERENCE, "not compared"):
            count = int((rows["verdict"] == verdict).sum())
            parts += [f"{verdict} for {count}"] if count else []
        start = f"{sentences.at(first)}, {sentences.named(first, table)} over seeds, against"
        told.append(f"{start} `{first['baseline']}`: {', '.join(parts)}.")
    return told


def legend(table: pd.DataFrame) -> list[str]:
    """Say how models are paired and what the marks mean."""
    told = [LEGEND]
    if (table["difference"].fillna(0).ne(0) & table["p"].isna()).any():
        told.append(EQUAL)
    if table.get("failed", pd.Series(dtype=float)).gt(0).any():
        told.append(FAILED)
    if table["verdict"].eq("not compared").any():
        told.append(NONE)
    if table["metric"].isin(SHARES).any():
        told.append("pp: percentage points.")
    return [" ".join(told)]


def _text(row: dict[str, Any]) -> str:
    """Return "−28% [−43, −9] ?", with "(3 of 5 seeds)" where some lack, and so of documents.

    "†" marks one whose better side failed on units that are left out.
    """
    if row["difference"] is None:
        return "not compared"
    unit = "%" if row["relative"] else " pp" if row["metric"] in SHARES else ""
    lacking = f" ({row['seeds']} of {row['asked']} seeds)" if row["seeds"] < row["asked"] else ""
    if row["n"] < row["of"]:
        lacking += f" ({row['n']} of {row['of']} {row['units']})"
    mark = " ?" if row["verdict"] == NO_DIFFERENCE and row["difference"] else ""
    mark += " †" if row["failed"] else ""
    return sentences.signed(row["difference"], row["low"], row["high"], unit) + lacking + mark
