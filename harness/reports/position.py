"""Loss at every position of the window, one panel per length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ropewalk.harness.reports import _style as style
from ropewalk.harness.reports._text import titles

MOST_PANELS = 4
WINDOW = ["trained_length", "unit", "start", "bucket", "tokens", "losses"]
NONE = (
    "no task scored whole windows (tail scores only their last tokens, passkey its answer); add "
    '"perplexity:protocol=prefix" to the sweep'
)


@style.styled
def make(frame: pd.DataFrame) -> Figure:
    """Draw the mean loss of the documents over the position, for the longest lengths."""
    known, named = style.methods(frame), titles(frame)
    table = known.drawn(positions(frame))
    beyond = table[table["length"] > table["trained_length"]]
    table = table if beyond.empty else beyond
    # The longest lengths of every model and task, as many of each as there is room for.
    kinds = table.groupby(["model", "task"], sort=False)
    most = max(1, MOST_PANELS // kinds.ngroups)
    table = table[kinds["length"].rank("dense", ascending=False) <= most]
    every = list(table.groupby(["model", "task", "length"], sort=False))
    groups, left_out = style.shown_part(every, "panels")
    columns = style.columns_for(len(groups))
    figure, panels, room = style.sheet(len(groups), columns, 2.6)
    parts = [part for part in ("model", "task") if table[part].nunique() > 1]
    for axes, (_, rows) in zip(panels, groups, strict=True):
        for scaling, curve in rows.groupby("scaling", sort=False):
            known.plot(axes, curve[["position", "score"]], str(scaling))
        first = rows.iloc[0]
        _position_axis(axes, rows["position"].min(), first["length"], first["trained_length"], room)
        axes.set_ylim(table["score"].min() - 0.1, table["score"].max() + 0.1)
        title = [named.get(first[part], first[part]) for part in parts]
        title.append(f"{first['length']:,} tokens")
        axes.set_title(style.folded(", ".join(title), room), pad=style.SIZE + 4)
    for axes in panels[::columns]:
        axes.set_ylabel("Loss (nats per token),\nlower is better")
    kind = ", ".join(f"{model}, {named[str(task)]}" for (model, task), _ in kinds)
    note = f"{kind}; {style.span(table['documents'])} documents; a point is the mean of the "
    note += "positions around it."
    known.finish(figure, panels, note + left_out)
    return figure


def _position_axis(axes: Axes, first: float, length: int, trained: int, room: float) -> None:
    low, high = first / 1.05, length * 1.05
    powers = {trained * 2.0**power for power in range(-3, 20)}
    ticks = sorted({int(tick) for tick in powers if first <= tick <= length} | {length})
    inches = [room * math.log2(tick / low) / math.log2(high / low) for tick in ticks]
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, style.thinned([style.length_label(tick) for tick in ticks], inches))
    axes.xaxis.set_minor_locator(NullLocator())
    style.shade_window(axes, trained)
    axes.set_xlabel("Position (tokens)")


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
    facts = {
        "trained_length": whole.trained_length,
        "documents": len({window.unit for window in windows}),
    }
    return [
        facts
        | {
            "position": min(origin + (run + 0.5) * bucket, whole.length),
            "score": sums[run] / counts[run],
        }
        for run in np.flatnonzero(counts)
    ]
