"""Quality inside the trained window and at the longest length, one row per method."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from harness.reports.curves import TRUNCATED, TRUNCATION
from harness.reports.plots.methods import methods
from harness.reports.plots.panel import LOG_FROM, plain_log
from harness.reports.plots.style import GREY, SIZE, Look, columns_for, foot, sheet, tidy
from harness.reports.writing import sentences
from harness.stats.cells import cells
from harness.stats.decision import truncations
from harness.stats.measure import LOWER, SHARES

ROW = 0.19  # inches
NOTE = (
    "Thick bars: 95 % intervals at the longest length. A method whose factor follows the length is "
    "the model itself inside its window. Best at the longest length on top, by the first panel."
)


def make(frame: pd.DataFrame) -> Figure:
    """Draw two joined points per method, in one panel per model and task."""
    known, truncated = methods(frame), truncations(frame)
    every = known.drawn(cells(frame))
    table = ends(every)
    groups = list(table.groupby(["model", "task"], sort=False))
    columns = columns_for(len(groups), table["task"].nunique())
    first = groups[0][1]  # its methods from the worst, at the bottom, to the best
    rising = first["metric"].iloc[0] not in LOWER
    ranked = list(first.sort_values("score_long", ascending=rising, kind="stable")["scaling"])
    order = [*(name for name in table["scaling"].unique() if name not in ranked), *ranked]
    figure, panels = sheet(len(groups), columns, panel_height=ROW * len(order) + 0.85)
    look = known.look
    for index, (axes, ((model, task), rows)) in enumerate(zip(panels, groups, strict=True)):
        _panel(axes, rows.set_index("scaling"), look, order)
        if (model, task) in truncated:
            axes.axvline(truncated[str(model), str(task)][1], color=GREY, **TRUNCATION)
        axes.set_yticks(range(len(order)), order if index % columns == 0 else [""] * len(order))
        tidy(axes, f"{model}, {task}", room=figure.get_size_inches()[0] / columns - 0.8)
    marks = [
        Line2D([], [], marker="o", linestyle="", color=GREY, markerfacecolor=face, markersize=5)
        for face in ("white", GREY)
    ]
    counts = "; ".join(f"{rows['n'].max()} ({task})" for (_, task), rows in groups)
    names = [_length(table, "longest inside the window"), _length(table, "longest", "_long")]
    note = f"n: {counts}. {NOTE}{TRUNCATED if truncated else ''}{without(every, table)}"
    foot(figure, marks, names, note)
    return figure


def _length(table: pd.DataFrame, words: str, end: str = "") -> str:
    """Return "at 2048 tokens (8×)", or in words where models differ."""
    if table[f"length{end}"].nunique() > 1:
        return f"at the {words}"
    row = table.iloc[0]
    return f"at {row[f'length{end}']} tokens ({row[f'relative_length{end}']:.3g}×)"


def _panel(axes: Axes, rows: pd.DataFrame, look: Mapping[str, Look], order: list[str]) -> None:
    for place, name in enumerate(order):
        if name not in rows.index:
            continue
        row, color = rows.loc[name], look[name].color
        axes.plot([row["score"], row["score_long"]], [place, place], color=color, linewidth=0.8)
        axes.hlines(place, row["low_long"], row["high_long"], color=color, linewidth=3, alpha=0.35)
        axes.plot(row["score"], place, "o", color=color, markerfacecolor="white", markersize=5)
        axes.plot(row["score_long"], place, "o", color=color, markersize=5, label=name)
    axes.set_ylim(-0.6, len(order) - 0.4)
    first, scores = rows.iloc[0], pd.concat([rows["score"], rows["score_long"]])
    if first["metric"] in SHARES:
        axes.set_xlim(-0.04, 1.04)
        axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    elif scores.min() > 0 and scores.max() > LOG_FROM * scores.min():
        plain_log(axes, "x", scores.min(), scores.max())
    verb = "lower" if first["metric"] in LOWER else "higher"
    unit = " (%)" if first["metric"] in SHARES else ""
    axes.set_xlabel(f"{first['metric'].capitalize()}{unit}, {verb} is better", fontsize=SIZE)


ENDS = ("score", "low", "high", "length", "relative_length")
KIN = ["model", "task", "scaling"]


def ends(table: pd.DataFrame) -> pd.DataFrame:
    """Return every method's score at the longest length inside the window and at the longest."""
    known = table[table["score"].notna()]
    within = known["length"] <= known["trained_length"]
    # A row whole: GroupBy.last takes a missing interval from a shorter length.
    inside, beyond = (
        rows.groupby(KIN, sort=False).tail(1).set_index(KIN)
        for rows in (known[within], known[~within])
    )
    far = beyond[list(ENDS)].add_suffix("_long")
    both = inside[[*ENDS, "metric", "n"]].join(far, how="inner").reset_index()
    if both.empty:
        raise ValueError(
            "nothing to set against each other: it needs lengths inside the window and beyond"
        )
    # A method lost at the longest length would be shown at a shorter one, beside the others.
    longest = both.groupby(["model", "task"])["length_long"].transform("max")
    return both[both["length_long"] == longest]


def without(every: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return which methods lack one of the two scores of a panel that they were asked for."""
    requested, drawn = (pd.MultiIndex.from_frame(rows[KIN]).unique() for rows in (every, table))
    shown = set(map(tuple, table[KIN[:2]].to_numpy()))
    lost = [cell[2] for cell in requested.difference(drawn, sort=False) if cell[:2] in shown]
    named = sentences.listed(list(dict.fromkeys(lost))).replace("`", "") if lost else ""
    return f" Without a score at one of the two lengths: {named}." if lost else ""
