"""Loss at every position of the longest window, one panel per model and task."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ropewalk.harness.reports import _style as style

WINDOW = ["trained_length", "unit", "start", "bucket", "tokens", "losses"]
CAPTION = (
    "Mean loss over {} documents, lower is better; a point is the mean of the positions around it. "
    "Shaded: lengths of pretraining."
)
NONE = (
    "no task scored whole windows (tail scores only their last tokens, passkey its answer); add "
    '"perplexity:protocol=prefix" to the sweep'
)


@style.drawing()
def make(frame: pd.DataFrame) -> Figure:
    """Draw the mean loss of the documents over the position, at the longest length of a task."""
    known = style.methods(frame)
    table = known.drawn(positions(frame))
    longest = table.groupby(["model", "task"])["length"].transform("max")
    table = table[table["length"] == longest]
    groups = table.groupby(["model", "task", "length"], sort=False)
    figure, panels, letters = style.sheet(len(groups), 2.6)
    for axes, (_, rows) in zip(panels, groups, strict=True):
        first = rows.iloc[0]
        length, window = int(first["length"]), int(first["trained_length"])
        for scaling, curve in rows.groupby("scaling", sort=False):
            known.plot(axes, curve["position"], curve["score"], str(scaling))
        style.length_axis(axes, rows["position"].min() / 1.05, length * 1.05, window)
        axes.set_ylim(table["score"].min() - 0.1, table["score"].max() + 0.1)
        axes.set_title(fill(f"{first['model']}, {first['task']}, {length:,} tokens", letters))
        axes.set_xlabel("Position (tokens)")
        axes.set_ylabel("Loss (nats per token)")
    known.finish(figure, CAPTION.format(style.span(table["documents"])))
    return figure


def positions(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model, task, length, scaling and run of positions, with its mean loss."""
    if "losses" not in frame:
        raise ValueError(NONE)
    samples = frame[frame["losses"].notna() & (frame["status"] == "ok")]
    if "protocol" in frame:  # tail scores the last tokens of its window, however short that is
        samples = samples[samples["protocol"] != "tail"]
    cell = ["model", "task", "scaling", "length"]
    most = samples.groupby(cell)["tokens"].transform("max")
    samples = samples[most >= samples["length"] / 2]
    if samples.empty:
        raise ValueError(NONE)
    samples = samples.sort_values("length", kind="stable")[[*cell, *WINDOW]]
    rows = [
        dict(zip(cell, key, strict=True)) | run
        for key, windows in samples.groupby(cell, sort=False)
        for run in _runs(list(windows.itertuples(index=False)))
    ]
    return pd.DataFrame(rows)


def _runs(windows: list[Any]) -> list[dict[str, Any]]:
    """Return the mean over the tokens of one cell in the runs of a window that is scored whole.

    The runs of a window that scores less are shorter, and count where their middle is.
    """
    whole = max(windows, key=lambda window: window.bucket)
    origin, bucket = int(min(window.start for window in windows)), int(whole.bucket)
    sums, counts = np.zeros((2, (int(whole.length) - origin - 1) // bucket + 1))
    for window in windows:
        before = np.arange(len(window.losses)) * window.bucket
        tokens = np.minimum(window.bucket, window.tokens - before)
        middles = window.start + before + (tokens - 1) / 2
        runs = (middles - origin).astype(int) // bucket
        np.add.at(sums, runs, np.array(window.losses) * tokens)
        np.add.at(counts, runs, tokens)
    documents = len({window.unit for window in windows})
    return [
        {
            "trained_length": whole.trained_length, "documents": documents,
            "position": min(origin + (run + 0.5) * bucket, whole.length),
            "score": sums[run] / counts[run],
        }
        for run in np.flatnonzero(counts)
    ]  # fmt: skip
