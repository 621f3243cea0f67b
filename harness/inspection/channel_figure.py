"""Draw the ratio of scaled to unscaled frequencies, per channel pair and method."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.reports.plots.methods import methods
from harness.reports.plots.panel import by_length, where_changed
from harness.reports.plots.style import GREY, SIZE, Look, edge

UNSEEN = "unseen angles"
SHADE = "0.9"
LOWEST, HIGHEST = 2.0**-10, 2.0**10  # a ratio outside is drawn at the edge
NOTE = (
    "Channel pairs from fastest (left) to slowest (right), by their turns without scaling. Right "
    "of the dotted line they made less than one turn in training; where shaded, their angles at "
    "this length exceed all those of training."
)
STILL = " Triangles on the axis: not rotated."


def draw(frame: pd.DataFrame) -> Figure:
    """Draw a panel per length in which a method changes anything (all, where none does)."""
    known = methods(frame)
    table = known.drawn(frame)
    table = where_changed(table, table["change"] != "unchanged")
    look = known.look
    low, high = _span(table)
    figure, panels = by_length(table, lambda axes, rows: _panel(axes, rows, look, low, high))
    note = NOTE + (STILL if (table["ratio"] == 0).any() else "")
    known.finish(figure, panels, note, more={UNSEEN: Patch(color=SHADE)})
    return figure


def _span(table: pd.DataFrame) -> tuple[float, float]:
    """Return the range of ratios, shared by all panels."""
    moving = table.loc[table["ratio"] > 0, "ratio"]
    low = max(LOWEST, min(moving.min(), (1 / table["stretch"]).min()))
    high = min(HIGHEST, max(1.0, moving.max()))
    pad = (high / low) ** 0.06 if high > low else 1.1
    return low / pad, high * pad


def _panel(
    axes: Axes, rows: pd.DataFrame, look: Mapping[str, Look], low: float, high: float
) -> None:
    """Draw the ratios at one length over the turns that each pair made in training."""
    turns = rows["turns"]
    axes.set_xscale("log")
    axes.set_xlim(turns.max() * 1.25, turns.min() / 1.25)  # fastest first
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    if turns.min() < 1:
        first = rows.iloc[0]
        seen = min(high, first["trained_length"] / first["length"])
        axes.fill_between([1, turns.min() / 1.25], seen, high, color=SHADE, lw=0, zorder=0)
        axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    for index, (scaling, pairs) in enumerate(rows.groupby("scaling", sort=False)):
        _line(axes, pairs, str(scaling), look[str(scaling)], index, len(look))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _fraction(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("Turns in the trained window", fontsize=SIZE)
    axes.set_ylabel("Ratio to unscaled frequency", fontsize=SIZE)


def _line(axes: Axes, pairs: pd.DataFrame, label: str, look: Look, index: int, count: int) -> None:
    """Draw one method; later ones are narrower, so that several in one place are seen."""
    ratio = pairs["ratio"].to_numpy()
    every = max(1, len(ratio) // 12)
    axes.plot(
        pairs["turns"], np.where(ratio > 0, ratio.clip(LOWEST, HIGHEST), np.nan), label=label,
        color=look.color, linestyle=look.linestyle,
        linewidth=look.width * (1.15 - 0.5 * index / count),
        marker=look.marker, markersize=4.4 - 1.2 * index / count, markeredgecolor=edge(look),
        markerfacecolor=look.face, markeredgewidth=0.5, zorder=1.5 + look.width,
        markevery=(index * every // count, every),
    )  # fmt: skip
    still = pairs.loc[pairs["ratio"] == 0, "turns"]
    if still.empty:
        return  # an unclipped line without points would break the layout
    axes.plot(
        still, np.full(len(still), axes.get_ylim()[0]), label="_rest", color=look.color, marker="v",
        markersize=5 - 2.5 * index / count, linestyle="", clip_on=False,
    )  # fmt: skip


def _fraction(value: float) -> str:
    """Return "1/8", "1", "2"."""
    return str(Fraction(value).limit_denominator(2**12))
