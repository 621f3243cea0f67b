"""Draw attention scores against distance: the near ones on a linear, all on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from harness.inspection.scores import MORE
from harness.reports.drawing.style import (
    GREY,
    SIZE,
    Look,
    foot,
    length_label,
    looks,
    sheet,
    tidy,
    trace,
)

NOTE = (
    "Score of a query with a key of the same content at a distance: mean over 64 random contents, "
    "and heads; the bands hold 90 % of them. Left: linear axis, the trained window. Right: "
    "logarithmic, the whole length, averaged over a sixth of an octave, cut at -15. Grey: the "
    "trained window. Encodings by name have their initial parameters, which for learned ones say "
    "little; the folder of a trained model has its own."
)
VALUES = ("mean", "low", "high")
LEAST = -15.0  # of the scores that are drawn


def draw(frame: pd.DataFrame, trained_length: int) -> Figure:
    """Draw two panels a group of curves: the trained window, and the whole length."""
    groups = list(frame.groupby("panel", sort=False))
    figure, panels = sheet(2 * len(groups), 2, panel_height=2.4)
    names = list(frame["name"].unique())
    scaling = frame.loc[~frame["panel"].isin(MORE), "name"]  # the encoding none has no rotation
    plain = ["none"] if "none" in set(scaling) else ["rope"]
    look = looks(names, distinct=names, plain=plain)
    for index, (title, rows) in enumerate(groups):
        for axes, log in zip(panels[2 * index : 2 * index + 2], (False, True), strict=True):
            near = rows if log else rows[rows["distance"] < trained_length]
            _panel(axes, _binned(near) if log else near, look, trained_length, log=log)
            tidy(axes, str(title), room=3.0)
    lines = {str(line.get_label()): line for axes in panels for line in axes.get_lines()}
    shown = [name for name in names if name in lines]
    foot(figure, [lines[name] for name in shown], shown, NOTE)
    return figure


def _binned(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the means over a sixth of an octave: scores vary from token to token."""
    rows = rows[rows["distance"] > 0]
    bins = (6 * np.log2(rows["distance"])).round().rename("bin")
    return rows.groupby(["name", bins], sort=False)[["distance", *VALUES]].mean().reset_index()


def _panel(
    axes: Axes, rows: pd.DataFrame, look: Mapping[str, Look], trained_length: int, *, log: bool
) -> None:
    """Draw the curves of one group."""
    if log:
        axes.set_xscale("log", base=2)
        axes.axvspan(1, trained_length, color="0.94", linewidth=0, zorder=0)
        axes.axvline(trained_length, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: length_label(int(value))))
        axes.xaxis.set_minor_locator(NullLocator())
    for index, (name, curve) in enumerate(rows.groupby("name", sort=False)):
        axes.fill_between(
            curve["distance"], curve["low"], curve["high"], color=look[str(name)].color,
            alpha=0.08, linewidth=0,
        )  # fmt: skip
        trace(axes, curve[["distance", "mean"]], str(name), look, index, 8)
    axes.set_ylim(bottom=max(LEAST, axes.get_ylim()[0]))
    axes.set_xlabel("Distance (tokens)", fontsize=SIZE)
    axes.set_ylabel("Attention score", fontsize=SIZE)
