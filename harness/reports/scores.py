"""Score, 95 % interval, n and status of every cell, one row each: the table to keep as CSV."""

from __future__ import annotations

import pandas as pd

from harness.reports._cells import cells


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model, task, scaling and length; accuracy is a share, 0 to 1."""
    return cells(frame)
