"""Every method less a baseline on the same documents and trials, corrected for their number."""

from __future__ import annotations

import pandas as pd

from harness.reports.stats.against import (
    NO_DIFFERENCE,
    against,
    beside,
    checkpoints,
    chosen,
    key,
)
from harness.reports.writing import sentences


def make(frame: pd.DataFrame, *, baseline: str | None = None) -> pd.DataFrame:
    """Return a row per cell with its difference from the ``baseline`` at the same length.

    The baseline is ``none`` by default, or the first model where models are compared as methods.

    Of models that were asked the same questions also a row per cell with its difference from the
    same method of the first of them, whose name is then the baseline.
    """
    known, baseline = list(frame["scaling"].unique()), chosen(frame, baseline)
    models = checkpoints(frame)
    if len(models) == 0 and (baseline not in known or len(known) < 2):
        raise ValueError(
            f"nothing to compare with {baseline!r}: the sweep has {', '.join(known)}; "
            "choose another by differences:baseline=NAME"
        )
    table = pd.concat([against(frame, baseline), models], ignore_index=True)
    if table.empty:
        scored = set(frame.dropna(subset="score")["scaling"])
        lacks = "no other method has a score where it has one"
        told = lacks if baseline in scored else "it has no score"
        raise ValueError(f"nothing to compare with {baseline!r}: {told}")
    return table


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the table for people: lengths side by side."""
    return beside(table)


def words(table: pd.DataFrame) -> list[str]:
    """Say how many comparisons there are and how each came out."""
    told = []
    for (model, _, _), rows in table.groupby(["model", "task", "baseline"], sort=False):
        first = sentences.records(rows)[0]
        measured = sentences.named(first, table)
        start = f"{model}, {measured}" if table["model"].nunique() > 1 else measured
        real = rows[~rows["same"]].drop_duplicates(["measured_as", "length"])
        verdicts = real["verdict"].value_counts()
        counted = ", ".join(
            f"{verdicts.get(name, 0)} {name}"
            for name in ("better", "worse", NO_DIFFERENCE, "not compared")
            if name in verdicts or name != "not compared"
        )
        of = f"{len(real)} comparison{'' if len(real) == 1 else 's'}"
        told.append(f"{start} against `{first['baseline']}`, {of}: {counted}.")
    return told


def legend(table: pd.DataFrame) -> list[str]:
    """Say what the table's words and marks mean."""
    return [key(table)]
