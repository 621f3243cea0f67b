"""Score, 95 % interval, n and status of every cell, one row each."""

from __future__ import annotations

import pandas as pd

from ropewalk.harness.reports.writing.sentences import percent
from ropewalk.harness.reports.writing.tables import wide
from ropewalk.harness.stats.cells import CELL, cells

LENIENT = ("exact", "format")  # kinds of answers with the number right


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model, task, scaling and length; accuracy is a share, 0 to 1.

    ``lenient`` is the share of answers whose number is right in any format, for tasks that report
    it.
    """
    table = cells(frame)
    if "found" not in frame:
        return table
    known = frame.loc[frame["status"] == "ok", [*CELL, "found"]]
    right = known["found"].isin(LENIENT).astype(float).where(known["found"].notna())
    shares = known.assign(lenient=right).groupby(CELL)["lenient"]
    lenient = shares.agg(lambda right: right.mean(skipna=False))
    return table.merge(lenient.reset_index(), on=CELL, how="left")


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the same for people: one table per model and task, lengths side by side."""
    return wide(table)


def notes(table: pd.DataFrame) -> list[str]:
    """Return where answers are right except for their format, with the largest difference."""
    if "lenient" not in table:
        return []
    texts = []
    more = table[table["lenient"] > table["score"]]
    for (model, task), rows in more.groupby(["model", "task"], sort=False):
        row = max(rows.to_dict("records"), key=lambda row: row["lenient"] - row["score"])
        texts.append(
            f"{model}, {task}: answers with the right number in another format do not count; with "
            f"them (column lenient) `{row['scaling']}` at {row['length']} tokens has "
            f"{percent(row['lenient'])} % instead of {percent(row['score'])} %."
        )
    return texts
