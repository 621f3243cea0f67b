"""report: what it shows, in one line."""

import pandas as pd


def make(frame: pd.DataFrame, *, digits: int = 1) -> pd.DataFrame:
    """Return a table, or a matplotlib Figure, of a frame with one row per sample.

    Here the time that every cell took. Keyword-only parameters are the options. Raise ValueError,
    in a sentence, for a frame with nothing to show.
    """
    known = frame[frame["status"] == "ok"]
    if known.empty:
        raise ValueError("nothing was measured")
    cells = known.groupby(["model", "task", "scaling", "length"], sort=False)
    table = cells.agg(score=("score", "first"), seconds=("seconds", "sum")).reset_index()
    return table.round({"seconds": digits})


def notes(table: pd.DataFrame) -> list[str]:
    """Return sentences on the table, to be printed below it."""
    slowest = table.sort_values("seconds").iloc[-1]
    return [f"{slowest['scaling']} at {slowest['length']} tokens took the longest."]
