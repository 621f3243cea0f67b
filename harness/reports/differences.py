"""Differences of every method from a baseline, on the same documents or trials."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ropewalk.harness.reports import cells
from ropewalk.harness.reports._text import across, change
from ropewalk.harness.stats.cells import CELL
from ropewalk.harness.stats.differences import NOT_COMPARED, SAME
from ropewalk.harness.stats.differences import between as between
from ropewalk.harness.stats.paired import NO_DIFFERENCE

COLUMNS = [
    *CELL, "metric", "relative_length", "score", "baseline", "difference", "difference_low",
    "difference_high", "paired", "asked", "unit", "p", "p_all", "verdict", "failed", "relative",
]  # fmt: skip
MARKS = (
    "Differences: on the documents or trials that a method and the baseline share, with the 95 % "
    "interval of each difference alone. Percent of perplexity, percentage points (pp) of a share. "
    "“=”: the same measurement. “?”: no significant difference (5 %, corrected for all comparisons "
    "at a length)."
)
FAILED = "†: the method failed on documents or trials, which are left out for both."


def make(frame: pd.DataFrame, *, baseline: str | None = None) -> pd.DataFrame:
    """Return one row per cell with its difference from the ``baseline`` at the same length.

    The baseline is ``none`` by default, else ``native``. Commas in its name are written as plus
    signs. Raises ValueError where nothing can be compared with it.
    """
    table = cells.make(frame, baseline=baseline)
    known = table[table["baseline"].notna()]
    if known.empty:
        names = ", ".join(table["scaling"].unique())
        raise ValueError(
            f"nothing to compare with {baseline or 'none'!r}: the scores are of {names}; choose "
            "differences:baseline=NAME"
        )
    return known[COLUMNS]


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return one table per model and task with the lengths side by side."""
    known = table[table["baseline"].notna()]
    return {
        f"{title}, less {baseline}": shown
        for baseline, rows in known.groupby("baseline", sort=False)
        for title, shown in across(rows, _text).items()
    }


def notes(table: pd.DataFrame) -> list[str]:
    """Return what the numbers and marks mean."""
    if table["baseline"].isna().all():
        return []
    return [MARKS, *([FAILED] if table["failed"].fillna(0).gt(0).any() else [])]


def _text(row: dict[str, Any]) -> str:
    """Return "−26.8 % [−33, −20]", with marks and, if some are missing, how many were compared."""
    if row["verdict"] == SAME:
        return "="
    failed = " †" * bool(row["failed"])
    if row["verdict"] == NOT_COMPARED:
        return f"not compared{failed}"
    text = change(row, "difference")
    lacking = f" ({row['paired']} of {row['asked']})" * bool(row["paired"] < row["asked"])
    return f"{text}{lacking}{' ?' if row['verdict'] == NO_DIFFERENCE else ''}{failed}"
