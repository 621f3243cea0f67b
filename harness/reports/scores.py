"""Score, 95 % interval, n and status of every cell, one row each: the table to keep as CSV."""

from __future__ import annotations

import pandas as pd

from harness.reports._cells import cells
from harness.reports._escape import markdown_text
from harness.reports._tables import markdown, wide


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model, task, scaling and length; accuracy is a share, 0 to 1."""
    return cells(frame)


def readable(frame: pd.DataFrame) -> str:
    """Return the same for people: a table per model and task, lengths side by side."""
    parts = []
    for (model, task), table in wide(frame).items():
        metric = frame.loc[frame["task"] == task, "metric"].iloc[0]
        heading = f"### {markdown_text(task)}, {metric} [95 % interval], {markdown_text(model)}"
        parts.append(f"{heading}\n\n{markdown(table)}\n")
    return "\n".join(parts)
