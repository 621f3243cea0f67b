"""The figure of a race: how much worse every candidate is, and its in-window cost, one row each."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator, SymmetricalLogLocator

from harness.reports.plots.style import (
    COLOURS,
    GREY,
    SIZE,
    folded,
    foot,
    length_label,
    sheet,
    tidy,
)
from harness.select.answer import ALIKE, CODED, COSTLY, OPEN, RECOMMENDED, WORSE, percent
from harness.stats.paired import Difference

ROW = 0.19  # inches
MOST = 30  # candidates
LINEAR = 10  # percent: the scale is linear up to it
NOTE = (
    "Left: perplexity above that of the recommended method, on the documents that both were "
    "measured on; at the right, the bound of how much it is at most above that of the best (95 %, "
    "all rows together), and the number of documents. Right: perplexity inside the window above "
    "that of the plain model; the line is the tolerance of {tolerance}. Bars: 95 % intervals of "
    "each difference alone. Scales are logarithmic beyond {linear} %."
)
FREE = " The dashed line is truncation to the window."
FOLLOWS = " †: its form changes with the length of the input; a server keeps that of the target."
OTHER = f"{WORSE}, or {COSTLY}"
LOOKS = {
    RECOMMENDED: (COLOURS[0], COLOURS[0]), ALIKE: (COLOURS[2], COLOURS[2]),
    OPEN: (COLOURS[1], "white"), CODED: ("0.5", "white"), OTHER: ("0.6", "0.6"),
}  # fmt: skip


def draw(
    made: pd.DataFrame, *, model: str, lengths: tuple[int, int], tolerance: float,
    gain: Difference | None,
) -> Figure:  # fmt: skip
    """Draw the table of a race; ``lengths`` are those of the window and the target.

    ``gain`` is the recommended method's perplexity relative to truncation.
    """
    rows = made[made["difference"].notna()].head(MOST).iloc[::-1].reset_index(drop=True)
    figure, (far, near) = sheet(2, 2, panel_height=ROW * len(rows) + 0.8)
    _panel(far, rows, "difference")
    _panel(near, rows, "cost")
    near.axvline(100 * tolerance, color="black", linewidth=0.8)
    if gain is not None:
        cut = 100 * (1 / (1 + gain.value) - 1)
        far.axvline(cut, color="black", linewidth=0.8, linestyle="--")
    follows = rows["follows"].eq(True)
    names = [
        folded(f"{name} †" if marked else name, 2.2, SIZE - 1)
        for name, marked in zip(rows["scaling"], follows, strict=True)
    ]
    far.set_yticks(range(len(rows)), names)
    near.set_yticks(range(len(rows)), [""] * len(rows))
    for place, (bound, count) in enumerate(zip(rows["regret"], rows["documents"], strict=True)):
        told = f"{count}" if pd.isna(bound) else f"≤ {percent(bound)} · {count}"
        at = far.get_yaxis_transform()
        far.text(1.01, place, told, transform=at, fontsize=SIZE - 2, color=GREY, va="center")
    tidy(far, f"{model} at {length_label(lengths[1])} tokens", room=3)
    tidy(near, f"Cost inside the window ({length_label(lengths[0])})", room=3)
    marks = [
        Line2D([], [], marker="o", linestyle="", color=colour, markerfacecolor=face, markersize=5)
        for colour, face in LOOKS.values()
    ]
    note = NOTE.format(tolerance=percent(tolerance), linear=LINEAR)
    note += FREE * (gain is not None) + FOLLOWS * bool(follows.any())
    foot(figure, marks, list(LOOKS), note)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, kind: str) -> None:
    """Draw one difference of every candidate, in percent."""
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    for place, row in enumerate(rows.to_dict("records")):
        colour, face = LOOKS.get(row["verdict"], LOOKS[OTHER])
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
