"""Draw attention scores against distance: the near ones on a linear, all on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from harness.inspection.scores import MORE
from harness.reports.plots.style import (
    GREY,
    LOOKS,
    REST,
    SIZE,
    Look,
    foot,
    length_label,
    looks,
    sheet,
    tidy,
    trace,
)
from harness.reports.writing.sentences import counted

NOTE = (
    "Score of a query with a key of the same content at a distance: mean over 64 random contents "
    "and heads; the bands hold 90 % of them. Left: linear axis, the trained window. Right: "
    "logarithmic, the whole length, averaged over a sixth of an octave, cut at -15. Grey: the "
    "trained window. Encodings by name have their initial parameters, which for learned ones say "
    "little, and no projections; of a trained model's folder the contents are 64 tokens of its "
    "vocabulary, through the norm and projections of its first layer."
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
    look = looks(names, distinct=_distinct(frame, plain), plain=plain)
    for index, (title, rows) in enumerate(groups):
        for axes, log in zip(panels[2 * index : 2 * index + 2], (False, True), strict=True):
            near = rows if log else rows[rows["distance"] < trained_length]
            _panel(axes, _binned(near) if log else near, look, trained_length, log=log)
            tidy(axes, str(title), room=3.0)
    lines = {str(line.get_label()): line for axes in panels for line in axes.get_lines()}
    drawn: dict[str, Artist] = {n: lines[n] for n in names if n in lines and look[n] != REST}
    others, note = len([name for name in names if look[name] == REST]), NOTE
    if others:
        grey = counted(others, "others")
        drawn[grey] = Line2D([], [], color=REST.color, linewidth=REST.width)
        note += f" The first have a look of their own; thin grey: {grey}, in scores.csv."
    foot(figure, list(drawn.values()), list(drawn), note)
    return figure


def _distinct(frame: pd.DataFrame, plain: Collection[str]) -> list[str]:
    """Return the names that get a look of their own: all, or as many first ones as there are looks.

    Scalings, bases and encodings have as many each.
    """
    rows = frame[~frame["name"].isin(list(plain))].drop_duplicates("name")
    if len(rows) <= LOOKS:
        return list(rows["name"])
    kinds = rows["panel"].where(rows["panel"].isin(MORE), "scaling")
    return list(rows.groupby(kinds, sort=False)["name"].head(LOOKS // kinds.nunique()))


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
        if look[str(name)] != REST:
            axes.fill_between(
            curve["distance"], curve["low"], curve["high"], color=look[str(name)].color,
            alpha=0.08, linewidth=0,
        )  # fmt: skip
        trace(axes, curve[["distance", "mean"]], str(name), look, index, 8)
    low, high = max(LEAST, rows["low"].min()), max(LEAST + 1, rows["high"].max())
    room = 0.05 * max(high - low, 1e-3)
    axes.set_ylim(max(LEAST, low - room), high + room)
    axes.set_xlabel("Distance (tokens)", fontsize=SIZE)
    axes.set_ylabel("Attention score", fontsize=SIZE)
