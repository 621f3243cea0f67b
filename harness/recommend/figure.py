"""The figure of a race: how much worse every candidate is, and its price, a row each."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator, SymmetricalLogLocator

from harness.recommend.answer import CLOSE, LEADS, SOLE, VERDICTS
from harness.recommend.race import OPEN
from harness.reports.drawing.style import (
    COLOURS,
    GREY,
    SIZE,
    folded,
    foot,
    length_label,
    sheet,
    tidy,
)

ROW = 0.19  # inches
MOST = 30  # candidates
FIRST = (SOLE, LEADS)
NOTE = (
    "Left: perplexity above that of the first row, on the documents that both were measured on (at "
    "the right: how many); right: perplexity inside the window above the plain model's, where it "
    "was measured; the line is the tolerance of {tolerance:.3g} %. Bars: 95 % intervals of each "
    "difference alone; the race corrects for all candidates and rounds, and allows for failures "
    "not yet seen. Scales are logarithmic beyond {linear} %."
)
FOLLOWS = (
    " †: it changes with the length of the input; its price is that of its form inside the window, "
    "not of that at the target, which a server keeps."
)
LINEAR = 10  # percent: the scale is linear up to it


def draw(made: pd.DataFrame, *, model: str, lengths: tuple[int, int], tolerance: float) -> Figure:
    """Draw the table of a race; ``lengths`` are those of the window and the target."""
    rows = made[made["worse"].notna()].head(MOST).iloc[::-1].reset_index(drop=True)
    figure, (far, near) = sheet(2, 2, panel_height=ROW * len(rows) + 0.8)
    _panel(far, rows, "worse")
    _panel(near, rows, "price")
    near.axvline(100 * tolerance, color="black", linewidth=0.8)
    follows = rows["follows"].eq(True)
    names = [
        folded(f"{name} †" if marked else name, 2.2, SIZE - 1)
        for name, marked in zip(rows["scaling"], follows, strict=True)
    ]
    far.set_yticks(range(len(rows)), names)
    near.set_yticks(range(len(rows)), [""] * len(rows))
    for place, count in enumerate(rows["documents"]):
        at = far.get_yaxis_transform()
        far.text(1.01, place, str(count), transform=at, fontsize=SIZE - 2, color=GREY, va="center")
    tidy(far, f"{model} at {length_label(lengths[1])} tokens", room=3)
    tidy(near, f"Price inside the window ({length_label(lengths[0])})", room=3)
    texts = ["first", "not distinguished from it", "dropped"]
    marks = [
        Line2D([], [], marker="o", linestyle="", color=colour, markerfacecolor=face, markersize=5)
        for colour, face in map(_look, (SOLE, CLOSE, ""))
    ]
    note = NOTE.format(tolerance=100 * tolerance, linear=LINEAR)
    foot(figure, marks, texts, note + (FOLLOWS if follows.any() else ""))
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, kind: str) -> None:
    """Draw one difference of every candidate, in percent."""
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    for place, row in enumerate(rows.to_dict("records")):
        colour, face = _look(row["verdict"])
        if pd.notna(row[f"{kind}_low"]):
            ends = 100 * row[f"{kind}_low"], 100 * row[f"{kind}_high"]
            axes.hlines(place, *ends, color=colour, linewidth=1.1)
        if pd.notna(row[kind]):
            axes.plot(
                100 * row[kind], place, "o", color=colour, markerfacecolor=face, markersize=4.5
            )
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xscale("symlog", linthresh=LINEAR)
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=LINEAR))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+,.0f}" if x else "0"))
    axes.set_xlabel("Perplexity (%), lower is better", fontsize=SIZE - 1)


def _look(verdict: str) -> tuple[str, str]:
    """Return the colour of a candidate, and of the inside of its mark."""
    if verdict in FIRST:
        return COLOURS[0], COLOURS[0]
    if verdict in (CLOSE, VERDICTS[OPEN]):
        return COLOURS[1], "white"
    return "0.6", "0.6"
