"""Mean losses by position, of the windows that were scored as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tasks._intervals import ratio

NONE = (
    "no losses by position over a whole window: tail scores only its last tokens; add "
    '"perplexity:protocol=prefix" to the sweep (runs of version 0.1 or older have no such facts)'
)


def positions(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model, task, length, scaling and run of positions, with its mean loss."""
    if "losses" not in frame:
        raise ValueError(NONE)
    told = frame[frame["losses"].notna() & (frame["status"] == "ok")]
    told = told[told["tokens"] >= told["length"] / 2]
    if told.empty:
        raise ValueError(NONE)
    told = told.sort_values("length", kind="stable")
    table = pd.DataFrame([
        {**row, "scaling": scaling}
        for (_, _, scaling, _), cell in told.groupby(
            ["model", "task", "scaling", "length"], sort=False
        )
        for row in _runs(cell)
    ])  # fmt: skip
    return table.astype({"low": float, "high": float})  # without any interval they are None


def _runs(cell: pd.DataFrame) -> list[dict[str, Any]]:
    """Take the mean over the documents of one cell, for every run of positions they share."""
    first = cell.iloc[0]
    head = {
        name: first[name] for name in ("model", "task", "length", "trained_length", "frequencies")
    }
    shared = cell[(cell["start"] == first["start"]) & (cell["bucket"] == first["bucket"])]
    # Windows of one document are no samples of their own: their mean is one.
    windows = [np.array(rows["losses"].tolist()).mean(axis=0) for _, rows in shared.groupby("unit")]
    values = np.array(windows, dtype=float)
    rows = []
    for index, losses in enumerate(values.T):
        found = ratio(losses.tolist(), [1] * len(losses))
        low, high = found.interval()
        middle = first["start"] + (index + 0.5) * first["bucket"]
        rows.append({
            **head, "position": min(middle, first["length"]), "score": found.value,
            "low": low, "high": high, "documents": len(losses),
        })  # fmt: skip
    return rows
