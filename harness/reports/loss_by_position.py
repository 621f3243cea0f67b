"""Loss at every position of the window, one panel per length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ropewalk.harness.reports.plots import style
from ropewalk.harness.reports.plots.methods import methods
from ropewalk.harness.reports.plots.panel import shade_window
from ropewalk.harness.reports.writing.sentences import titles
from ropewalk.tasks._intervals import ratio

MOST_PANELS = 4


def make(frame: pd.DataFrame) -> Figure:
    """Draw the mean loss of the documents over the position, for the longest lengths."""
    known = methods(frame)
    table = known.drawn(positions(frame))
    beyond = table[table["length"] > table["trained_length"]]
    table = table if beyond.empty else beyond
    # The longest lengths of every model and task, as many of each as there is room for.
    kinds = table.groupby(["model", "task"], sort=False)
    most = max(1, MOST_PANELS // kinds.ngroups)
    longest = table[kinds["length"].rank("dense", ascending=False) <= most]
    every = list(longest.groupby(["model", "task", "length"], sort=False))
    groups, left_out = style.shown_part(every, "panels")
    table = pd.concat([rows for _, rows in groups])
    columns = style.columns_for(len(groups), 1)
    figure, panels = style.sheet(len(groups), columns, panel_height=style.paper().tall(2.6))
    room = figure.get_size_inches()[0] / columns - 0.65
    look, named = known.look, titles(frame)
    parts = [part for part in ("model", "task") if table[part].nunique() > 1]
    for axes, (_, rows) in zip(panels, groups, strict=True):
        _panel(axes, rows, look, room)
        axes.set_ylim(table["score"].min() - 0.1, table["score"].max() + 0.1)
        first = rows.iloc[0]
        title = [named.get(first[part], first[part]) for part in parts]
        title.append(f"{first['length']:,} tokens")
        style.tidy(axes, ", ".join(title), room=room, above=style.SIZE + 4)
    for axes in panels[::columns]:
        axes.set_ylabel("Loss (nats per token),\nlower is better", fontsize=style.SIZE)
    counts = "/".join(map(str, sorted(table["documents"].unique())))
    pairs = table[["model", "task"]].drop_duplicates().itertuples(index=False)
    kind = ", ".join(f"{model}, {named[task]}" for model, task in pairs)
    note = f"{kind}; {counts} documents; a point is the mean of the positions around it."
    known.finish(figure, panels, note + left_out)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, look: Mapping[str, style.Look], room: float) -> None:
    for index, (scaling, curve) in enumerate(rows.groupby("scaling", sort=False)):
        style.trace(axes, curve[["position", "score"]], str(scaling), look, index, 8)
    first = rows.iloc[0]
    trained, length = int(first["trained_length"]), int(first["length"])
    first_known = rows["position"].min()
    powers = [trained * 2**power for power in range(20)]
    every = {tick for tick in powers if first_known <= tick <= length} | {length}
    every |= {tick for part in (2, 4, 8) if (tick := trained // part) >= first_known}
    ticks = sorted(every)
    inches = room / math.log2(1.1 * length / first_known)
    labels = [style.length_label(tick) for tick in ticks]
    axes.set_xscale("log", base=2)
    axes.set_xlim(first_known / 1.05, length * 1.05)
    axes.set_xticks(ticks, style.spaced(labels, [inches * math.log2(tick) for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    shade_window(axes, trained, 2)
    axes.set_xlabel("Position (tokens)", fontsize=style.SIZE)


WINDOW = ["trained_length", "frequencies", "unit", "start", "bucket", "tokens", "losses"]
NONE = (
    "no task scored whole windows (tail scores only their last tokens, passkey its answer); add "
    '"perplexity:protocol=prefix" to the sweep'
)


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
    cells: dict[tuple[Any, ...], list[Any]] = {}
    for window in samples.itertuples(index=False):
        cells.setdefault(window[: len(cell)], []).append(window)
    table = pd.DataFrame([row for windows in cells.values() for row in _runs(windows)])
    return table.astype({"low": float, "high": float})  # without any interval they are None


def _runs(cell: list[Any]) -> list[dict[str, Any]]:
    """Return the mean over the tokens of one cell in the runs of a window that is scored whole.

    The runs of a window that scores less are shorter, and count where their middle is.
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
        before = np.arange(len(window.losses)) * window.bucket
        tokens = np.minimum(window.bucket, window.tokens - before)
        middles = window.start + before + (tokens - 1) / 2
        index = (middles - origin).astype(int) // bucket
        np.add.at(sums[rank[window.unit]], index, np.array(window.losses) * tokens)
        np.add.at(counts[rank[window.unit]], index, tokens)
    rows = []
    for place in np.flatnonzero(counts.sum(axis=0)):
        met = counts[:, place] > 0
        mean = ratio(sums[met, place].tolist(), counts[met, place].tolist())
        low, high = mean.interval()
        middle = origin + (place + 0.5) * bucket
        rows.append({
            **head, "position": min(middle, first.length), "score": mean.value,
            "low": low, "high": high, "documents": int(met.sum()), "scaling": first.scaling,
        })  # fmt: skip
    return rows
