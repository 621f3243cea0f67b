"""The tables that a page holds, each once, as the text of its CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from harness.reports.stats.cells import CELL
from harness.reports.stats.positions import positions as mean_losses
from harness.reports.stats.retrieval import hidden
from harness.reports.writing.tables import csv


@dataclass(frozen=True)
class Source:
    """A table and, in a sentence, what it has."""

    table: pd.DataFrame
    about: str


def embedded(sources: Mapping[str, Source]) -> dict[str, dict[str, Any]]:
    """Return every table as the text of its CSV file, and which of its columns are numbers."""
    return {
        name: {
            "csv": csv(source.table),
            "numbers": [
                str(column)
                for column in source.table
                if is_numeric_dtype(source.table[column])
                and not is_bool_dtype(source.table[column])
            ],
        }
        for name, source in sources.items()
    }


def positions(frame: pd.DataFrame) -> dict[str, Source]:
    """Return the losses by position, of sweeps that scored whole windows."""
    try:
        table = mean_losses(frame)
    except ValueError:
        return {}
    table = table[[*CELL, "trained_length", "position", "score", "low", "high", "documents"]]
    about = "Mean loss by position (nats per token), 95 % interval and number of documents."
    return {"positions": Source(_short(table), about)}


def depths(frame: pd.DataFrame) -> dict[str, Source]:
    """Return the share found at every length and depth, of tasks that hide something at one."""
    trials = hidden(frame)
    if trials.empty:
        return {}
    found = trials.groupby([*CELL, "trained_length", "depth"], sort=False)["value"]
    table = found.agg(found="mean", n="size").reset_index()
    about = "Share found at every length and depth (0 is the start of the text), of n trials."
    return {"depths": Source(_short(table), about)}


def failures(frame: pd.DataFrame) -> dict[str, Source]:
    """Return what has no number, how many samples of a cell, and why."""
    lost = frame[frame["status"] != "ok"]
    if lost.empty:
        return {}
    reason = lost["reason"] if "reason" in lost else pd.Series(index=lost.index, dtype=object)
    counted = lost.assign(reason=reason.fillna("")).groupby([*CELL, "status", "reason"], sort=False)
    about = "Samples without a number, and why: they are in no score."
    return {"failures": Source(counted.size().rename("samples").reset_index(), about)}


def _short(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of means with six digits a number: there may be thousands of rows."""
    numbers = table.select_dtypes("float").map(lambda value: float(f"{value:.6g}"))
    return table.assign(**{str(name): numbers[name] for name in numbers})
