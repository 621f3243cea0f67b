"""Mean losses by position, where whole windows were scored: of all windows, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks._intervals import ratio

WINDOW = ["trained_length", "frequencies", "unit", "start", "bucket", "tokens", "losses"]
NONE = (
    "no task scored whole windows (tail scores only their last tokens, passkey its answer); add "
    '"perplexity:protocol=prefix" to the sweep (runs of version 0.1 or older have no such facts)'
)


def positions(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model, task, length, scaling and run of positions, with its mean loss."""
    if "losses" not in frame:
        raise ValueError(NONE)
    told = frame[frame["losses"].notna() & (frame["status"] == "ok") & ~_tail(frame)]
    cell = ["model", "task", "scaling", "length"]
    most = told.groupby(cell)["tokens"].transform("max")
    told = told[most >= told["length"] / 2]
    if told.empty:
        raise ValueError(NONE)
    told = told.sort_values("length", kind="stable")[[*cell, *WINDOW]]
    cells: dict[tuple[Any, ...], list[Any]] = {}
    for window in told.itertuples(index=False):
        cells.setdefault(window[: len(cell)], []).append(window)
    table = pd.DataFrame([row for windows in cells.values() for row in _runs(windows)])
    return table.astype({"low": float, "high": float})  # without any interval they are None


def _tail(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which samples score only the last tokens of their window, however short that is."""
    none = pd.Series(data=False, index=frame.index)
    return frame["protocol"] == "tail" if "protocol" in frame else none


def _runs(cell: list[Any]) -> list[dict[str, Any]]:
    """Take the mean over the tokens of one cell in runs of positions, as its score is one of all.

    The runs are those of a window that is scored whole; those of one that scores less are shorter,
    and count where their middle is.
    """
    first = max(cell, key=lambda window: window.bucket)
    names = ("model", "task", "length", "trained_length", "frequencies")
    head = {name: getattr(first, name) for name in names}
    origin, bucket = int(min(window.start for window in cell)), int(first.bucket)
    size = (int(first.length) - origin - 1) // bucket + 1
    documents = dict.fromkeys(window.unit for window in cell)
    # Windows of one document are no samples of their own: their sums are one.
    sums, counts = np.zeros((2, len(documents), size))
    rank = {unit: row for row, unit in enumerate(documents)}
    for window in cell:
        places, tokens = _places(window)
        index = (places - origin).astype(int) // bucket
        np.add.at(sums[rank[window.unit]], index, np.array(window.losses) * tokens)
        np.add.at(counts[rank[window.unit]], index, tokens)
    rows = []
    for place in np.flatnonzero(counts.sum(axis=0)):
        met = counts[:, place] > 0
        found = ratio(sums[met, place].tolist(), counts[met, place].tolist())
        low, high = found.interval()
        middle = origin + (place + 0.5) * bucket
        rows.append({
            **head, "position": min(middle, first.length), "score": found.value,
            "low": low, "high": high, "documents": int(met.sum()), "scaling": first.scaling,
        })  # fmt: skip
    return rows


def _places(window: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the middle of every run of a window, and how many tokens it holds."""
    before = np.arange(len(window.losses)) * window.bucket
    tokens = np.minimum(window.bucket, window.tokens - before)
    return window.start + before + (tokens - 1) / 2, tokens
