"""A panel per length, for figures of what methods do rather than of what was measured."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.reports.plots.style import columns_for, length_label, sheet, tidy


def where_changed(table: pd.DataFrame, changed: pd.Series[bool]) -> pd.DataFrame:
    """Keep the lengths at which a method changes anything (all, where none does)."""
    lengths = table.loc[changed, "length"].unique()
    return table[table["length"].isin(lengths)] if len(lengths) else table


def by_length(
    table: pd.DataFrame, panel: Callable[[Axes, pd.DataFrame], None]
) -> tuple[Figure, list[Axes]]:
    """Draw a panel of every length's rows, titled with model, length and relative length."""
    groups = list(table.groupby("length"))
    columns = columns_for(len(groups), 1)
    figure, panels = sheet(len(groups), columns, panel_height=2.6)
    room = figure.get_size_inches()[0] / columns - 0.65
    for axes, (length, rows) in zip(panels, groups, strict=True):
        panel(axes, rows)
        first = rows.iloc[0]
        name = f"{first['model']}, {length_label(int(str(length)))} tokens"
        tidy(axes, f"{name} ({first['length'] / first['trained_length']:.3g}×)", room=room)
    return figure, panels
