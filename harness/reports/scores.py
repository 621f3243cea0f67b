"""Score, 95 % interval, n and status of every cell, one row each: the table to keep as CSV."""

from __future__ import annotations

import pandas as pd

from harness.reports.writing.tables import wide
from harness.stats.cells import CELL, cells

LENIENT = ("exact", "format")  # kinds of answers with the number right
MOST = 3  # cells that a sentence names


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model, task, scaling and length; accuracy is a share, 0 to 1.

    ``lenient`` is the share of answers that have the number right in whatever format, of tasks
    that say so.
    """
    table = cells(frame)
    if "found" not in frame:
        return table
    known = frame.loc[frame["status"] == "ok", [*CELL, "found"]]
    right = known["found"].isin(LENIENT).astype(float).where(known["found"].notna())
    lenient = right.groupby([known[name] for name in CELL]).agg(
        lambda told: told.mean(skipna=False)
    )
    return table.merge(lenient.rename("lenient").reset_index(), on=CELL, how="left")


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the same for people: a table per model and task, lengths side by side."""
    return wide(table)


def words(table: pd.DataFrame) -> list[str]:
    """Say where answers are right but for their format."""
    if "lenient" not in table:
        return []
    told = []
    more = table[table["lenient"] > table["score"]]
    for (model, task), rows in more.groupby(["model", "task"], sort=False):
        worst = rows.assign(gap=rows["lenient"] - rows["score"]).nlargest(MOST, "gap")
        named = [
            f"`{row.scaling}` at {row.length} tokens {row.score:.0%}, {row.lenient:.0%} with them"
            for row in worst.itertuples()
        ]
        rest = f" and {len(rows) - len(named)} more" if len(rows) > len(named) else ""
        told.append(
            f"{model}, {task}: the scores leave out answers whose number is right in another "
            f"format (column lenient): {'; '.join(named)}{rest}."
        )
    return told
