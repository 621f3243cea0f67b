"""Paired differences from a baseline with their intervals, a panel per length, a row a method."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.reports.differences import against, checkpoints, chosen
from harness.reports.plots.forest_plot import forest
from harness.reports.plots.methods import methods
from harness.reports.plots.style import (
    SIZE,
    folded,
    foot,
    length_label,
    paper,
    readable_part,
    sheet,
    tidy,
)

MOST_LENGTHS, MOST_METHODS, MOST_ROWS = 4, 24, 6
ROW = 0.17  # inches
NOTE = (
    "Each method less {baseline}{models} on the same documents and trials; bars: 95 % intervals of "
    "each difference alone. Full: significantly better or worse (5 %, corrected for all "
    "comparisons at a length); hollow: no significant difference; =: the same measurement; no "
    "mark: not compared."
)


def make(frame: pd.DataFrame, *, baseline: str | None = None) -> Figure:
    """Draw every method's difference from the ``baseline``, of many the best at the longest."""
    known, baseline = methods(frame), chosen(frame, baseline)
    table = pd.concat([against(frame, baseline), checkpoints(frame)], ignore_index=True)
    table = known.drawn(table) if len(table) else table
    if table.empty or table["same"].all():
        raise ValueError(f"no method differs from {baseline!r} here; choose another baseline=NAME")
    order = known.first(list(table["scaling"].unique()), MOST_METHODS)[::-1]
    every = [_lengths(kin) for _, kin in table.groupby(["model", "task", "baseline"], sort=False)]
    columns = max(map(len, every))
    groups, left_out = readable_part([kin for kin in every if kin], "rows of panels", MOST_ROWS)
    figure, panels = sheet(columns * len(groups), columns, panel_height=ROW * len(order) + 0.95)
    room = figure.get_size_inches()[0] / columns - 0.6
    for row, kin in enumerate(groups):
        here = panels[row * columns : (row + 1) * columns]
        for spare in here[len(kin) :]:
            spare.remove()
        for axes, rows in zip(here, kin, strict=False):
            forest(axes, rows, known.look, order)
            labels = [folded(name, 2, SIZE - 1) if axes is here[0] else "" for name in order]
            axes.set_yticks(range(len(order)), labels)
            first = rows.iloc[0]
            where = f"{length_label(int(first['length']))} ({first['relative_length']:.3g}×)"
            less = f" less {first['baseline']}" if first["baseline"] != baseline else ""
            over = f"{first['model']}{less}, {first['task']}" if axes is here[0] else ""
            tidy(axes, over, room=2 * room)
            lines = [line for line in (axes.get_title(loc="left"), where) if line]
            axes.set_title("\n".join(lines), loc="left", fontsize=SIZE)
    several = table["baseline"].nunique() > 1
    models = ", or less the same method of the model named," if several else ""
    left = table["scaling"].nunique() - len(order)
    if left:
        left_out += f" {left} methods are left out; differences has all."
    foot(figure, [], [], NOTE.format(baseline=baseline, models=models) + left_out)
    return figure


def _lengths(kin: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows of the longest lengths at which any method differs from the baseline."""
    every = [rows for _, rows in kin.groupby("length") if not rows["same"].all()]
    return every[-paper().across(MOST_LENGTHS) :]
