"""Draw the upper bound of the attention score against distance, before and after scaling."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from harness.reports.plots.methods import methods
from harness.reports.plots.panel import by_length, where_changed
from harness.reports.plots.style import GREY, SIZE, Look, length_label, trace

UNSCALED = "unscaled"
NOTE = (
    "Upper bound of the attention score, attention factor included: mean of |Sⱼ| over the channel "
    "pairs j (RoFormer, arXiv:2104.09864, section 3.4.3), averaged over a third of an octave of "
    "distances. Grey: the trained window."
)


def draw(frame: pd.DataFrame) -> Figure:
    """Draw a panel per length in which a method changes anything (all, where none does)."""
    known = methods(frame)
    table = known.drawn(frame[frame["distance"] > 0])  # the axis is logarithmic
    table = where_changed(table, table["bound"] != table["bound_unscaled"])
    top = 1.05 * max(table["bound"].max(), table["bound_unscaled"].max())
    figure, panels = by_length(table, lambda axes, rows: _panel(axes, rows, known.look, top))
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    known.finish(
        figure, panels, NOTE, more={UNSCALED: lines[UNSCALED]} if UNSCALED in lines else {}
    )
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, look: Mapping[str, Look], top: float) -> None:
    """Draw the bounds at one length against the distance, and the trained window."""
    trained_length, last = rows["trained_length"].iloc[0], rows["distance_last"].max()
    middle = rows[["distance", "distance_last"]].prod(axis=1) ** 0.5  # of a bin
    rows = rows.assign(distance=middle)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, max(2, last))
    axes.axvspan(1, min(trained_length, last), color="0.94", linewidth=0, zorder=0)
    axes.axvline(trained_length, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    if not any(style.color == "black" for style in look.values()):
        one = rows[rows["scaling"] == rows["scaling"].iloc[0]]
        axes.plot(
            one["distance"], one["bound_unscaled"], label=UNSCALED, color="black",
            linestyle="--", linewidth=0.9,
        )  # fmt: skip
    for index, (scaling, curve) in enumerate(rows.groupby("scaling", sort=False)):
        trace(axes, curve[["distance", "bound"]], str(scaling), look, index, 12)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: length_label(int(value))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("Relative distance (tokens)", fontsize=SIZE)
    axes.set_ylabel("Relative upper bound of the score", fontsize=SIZE)
    axes.set_ylim(0, top)
