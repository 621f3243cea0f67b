"""Differences with their intervals, a row a method: the panel of one length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from harness.reports.plots.style import GREY, SIZE, Look
from harness.stats.cells import records
from harness.stats.measure import SHARES


def forest(axes: Axes, rows: pd.DataFrame, look: Mapping[str, Look], order: list[str]) -> None:
    """Draw the differences of one length, a row a method, beside the line of no difference."""
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    facts = records(rows)
    for row in facts:
        if row["scaling"] in order and row["difference"] is not None:
            _row(axes, row, order.index(row["scaling"]), look[row["scaling"]])
    axes.set_ylim(-0.6, len(order) - 0.4)
    percent = facts[0]["relative"] or facts[0]["metric"] in SHARES
    axes.xaxis.set_major_locator(MaxNLocator(3, min_n_ticks=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _signed(100 * x if percent else x)))
    what = "Percentage points" if percent else "Difference"
    what = "Difference (%)" if facts[0]["relative"] else what
    axes.set_xlabel(f"{what},\n{facts[0]['better']} is better", fontsize=SIZE - 1)


def _row(axes: Axes, row: dict[str, Any], place: int, look: Look) -> None:
    """Draw one difference with its interval, and how many samples it lacks."""
    if row["same"]:
        axes.text(0, place, "=", ha="center", va="center", color=GREY, fontsize=SIZE)
        return
    decided = row["verdict"] in ("better", "worse")
    if row["low"] is not None:
        axes.hlines(place, row["low"], row["high"], color=look.color, linewidth=1.1)
    axes.add_line(Line2D(
        [row["difference"]], [place], marker=look.marker or "o", color=look.color, markersize=4.5,
        markerfacecolor=look.color if decided else "white", linestyle="", label=row["scaling"],
    ))  # fmt: skip
    axes.update_datalim([(row["difference"], place)])
    if row["status"] != "ok":
        part = (str(row["status"]).split(" ok")[0], (row["difference"], place), (0, 3))
        axes.annotate(*part, textcoords="offset points", ha="center", fontsize=5, color=GREY)


def _signed(value: float) -> str:
    """Return "+20", "−0.5", "0"."""
    return f"{value:+.6g}".replace("-", "−") if abs(value) > 1e-9 else "0"
