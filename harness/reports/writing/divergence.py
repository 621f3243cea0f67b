"""The divergence from the unpatched model (task window_kl) as columns of another table."""

from __future__ import annotations

import pandas as pd

from harness.reports.writing.sentences import text
from harness.reports.writing.tables import across
from harness.stats.cells import cells, records

KL = "window_kl"  # the metric of the task of this name
ENDS = {"score": KL, "low": f"{KL}_low", "high": f"{KL}_high"}
PLACE = ["model", "scaling", "length"]
LEGEND = (
    "window_kl: mean Kullback-Leibler divergence KL(unpatched || patched) of the distributions of "
    "the next token, in nats a token."
)


def with_divergence(table: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Add the columns of the divergence, where its samples are any.

    Raises ValueError for two tasks window_kl, whose columns would be the same.
    """
    if measured.empty:
        return table
    found = cells(measured).rename(columns=ENDS)[[*PLACE, *ENDS.values()]]
    if found.duplicated(PLACE).any():
        raise ValueError(
            f"samples of one task {KL} are shown, these are of several; report them apart."
        )
    return table.merge(found, how="left", on=PLACE)


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the divergence for people, lengths side by side; nothing where it lacks."""
    if KL not in table:
        return {}
    once = table.drop_duplicates(PLACE).dropna(subset=KL)
    told = once.assign(**{name: once[column] for name, column in ENDS.items()})
    told = told.assign(task=KL, metric="nats a token", status="ok")
    return across(told.assign(text=[text(cell, 4) for cell in records(told)]))
