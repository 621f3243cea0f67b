"""Score, 95 % interval, n and status of every cell, one row each: the table to keep as CSV."""

from __future__ import annotations

import pandas as pd

from harness.reports._cells import cells
from harness.reports._tables import wide


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model, task, scaling and length; accuracy is a share, 0 to 1."""
    return cells(frame)


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the same for people: a table per model and task, lengths side by side."""
    return wide(table)
