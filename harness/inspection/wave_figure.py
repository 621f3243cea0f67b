"""Draw the wavelength of every channel pair, 2π / frequency, against the trained window."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from harness.reports.plots.methods import methods
from harness.reports.plots.panel import by_length
from harness.reports.plots.style import GREY, SIZE, trace

NOTE = (
    "Tokens per turn of each channel pair, unscaled 2π · base^(2i/d). Dotted: the trained window. "
    "A pair of none below it turned fully in training and has met every angle; one above has not."
)


def draw(frame: pd.DataFrame) -> Figure:
    """Draw a panel per length; a pair that is not rotated has no wavelength."""
    known = methods(frame)
    look = known.look

    def panel(axes: Axes, rows: pd.DataFrame) -> None:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_minor_locator(NullLocator())
        window = rows["trained_length"].iloc[0]
        axes.axhline(window, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
        for index, (scaling, pairs) in enumerate(rows.groupby("scaling", sort=False)):
            trace(axes, pairs[["pair", "wavelength"]], str(scaling), look, index, 8)
        axes.set_xlabel("Channel pair i, fastest first", fontsize=SIZE)
        axes.set_ylabel("Wavelength (tokens)", fontsize=SIZE)

    figure, panels = by_length(known.drawn(frame), panel)
    known.finish(figure, panels, NOTE)
    return figure
