"""One panel of curves: lines with their bands, axes by metric, trained window, lost cells."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter
from matplotlib.transforms import ScaledTranslation

from harness.reports._style import GREY, SIZE, Look, length_label, letter, stretch_label

LOG_FROM = 3  # the ratio of largest to smallest perplexity from which the axis is logarithmic
LOST = {"out_of_memory": "x", "not_finite": "+", "failed": "1"}  # status: marker


def draw(axes: Axes, table: pd.DataFrame, look: Mapping[str, Look], *, room: float) -> float:
    """Draw the cells of one model and task into a panel ``room`` inches wide.

    Returns how many points over the panel are taken.
    """
    # Bands of methods that agree would add up to a dark one, so it is drawn once.
    table = table.assign(drawn=table.duplicated(["length", "low", "high"]))
    for index, (scaling, rows) in enumerate(table.groupby("scaling", sort=False)):
        # Later ones are smaller, so that markers in one place are seen to be several.
        size = max(3.2, 6 - 0.4 * index)
        _curve(axes, rows, str(scaling), look[str(scaling)], size)
    _score_axis(axes, table)
    trained_length = int(table["trained_length"].iloc[0])
    _length_axis(axes, sorted(table["length"].unique()), trained_length, room)
    above = 9 if _lost(axes, table, look) else 2
    _window(axes, trained_length, above)
    return above + SIZE + 2


def _curve(axes: Axes, rows: pd.DataFrame, label: str, look: Look, size: float) -> None:
    """Draw scores as a line that breaks where there is none, and their intervals."""
    lengths, scores = rows["length"], rows["score"]
    axes.plot(
        lengths, scores, label=label, color=look.color, linestyle=look.linestyle, linewidth=1.2,
        marker=look.marker, markersize=size, markeredgecolor="white", markeredgewidth=0.4,
    )  # fmt: skip
    drawn = rows["drawn"]
    inside = drawn & drawn.shift(1, fill_value=True) & drawn.shift(-1, fill_value=True)
    low, high = rows["low"].mask(inside), rows["high"].mask(inside)
    axes.fill_between(lengths, low, high, color=look.color, alpha=0.13, linewidth=0)
    # A band needs two points; a score between gaps gets a bar.
    alone = scores.notna() & scores.shift(1).isna() & scores.shift(-1).isna()
    axes.vlines(lengths[alone], low[alone], high[alone], color=look.color, linewidth=0.8)


def _score_axis(axes: Axes, table: pd.DataFrame) -> None:
    """Set the vertical axis: accuracy 0 to 100 %, perplexity in plain numbers."""
    metric, scores = table["metric"].iloc[0], table["score"]
    if metric == "accuracy":
        axes.set_ylim(-0.03, 1.03)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    elif metric == "perplexity" and scores.max() > LOG_FROM * scores.min():
        decades = math.log10(scores.max() / scores.min())
        subs = (1, 1.5, 2, 3, 4, 5, 7) if decades < 1 else (1, 2, 5) if decades < 3 else (1,)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.yaxis.set_minor_locator(NullLocator())


def _length_axis(axes: Axes, lengths: list[int], trained_length: int, room: float) -> None:
    """Tick the measured lengths, and label those for which there is room."""
    axes.set_xscale("log", base=2)
    first, last = min(*lengths, trained_length), max(*lengths, trained_length)
    pad = max(1.1, (last / first) ** 0.05)
    axes.set_xlim(first / pad, last * pad)
    inches = room / math.log2(pad * pad * last / first)
    labels, end = [], -math.inf
    for length in lengths:
        label = f"{length_label(length)}\n{stretch_label(length, trained_length)}"
        half = (max(map(len, label.split("\n"))) + 1) * letter(SIZE - 1) / 2
        free = math.log2(length) * inches - half >= end
        labels.append(label if free else "")
        end = math.log2(length) * inches + half if free else end
    axes.set_xticks(lengths, labels)
    axes.xaxis.set_minor_locator(NullLocator())


def _window(axes: Axes, trained_length: int, above: float) -> None:
    """Shade the lengths of pretraining and name their end, ``above`` points over the panel."""
    low, high = axes.get_xlim()
    axes.axvspan(low, trained_length, color="0.94", linewidth=0, zorder=0)
    axes.axvline(trained_length, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    left = trained_length**2 < low * high
    axes.annotate(
        "trained length", (trained_length, 1), (0, above), xycoords=axes.get_xaxis_transform(),
        textcoords="offset points", ha="left" if left else "right", fontsize=SIZE - 1, color=GREY,
    )  # fmt: skip


def _lost(axes: Axes, table: pd.DataFrame, look: Mapping[str, Look]) -> bool:
    """Mark over the panel what failed at each length, side by side, or once if all did."""
    marked = False
    for status, marker in LOST.items():
        for length, rows in table[table["score"].isna()].groupby("length"):
            names = rows["scaling"][rows["status"].str.contains(status)].tolist()
            everyone = len(names) == (table["length"] == length).sum()
            colors = [GREY] if everyone and len(names) > 1 else [look[name].color for name in names]
            for index, color in enumerate(colors):
                aside = 5.5 * (index - (len(colors) - 1) / 2)
                shift = ScaledTranslation(aside / 72, 5 / 72, axes.figure.dpi_scale_trans)
                axes.plot(
                    [length], [1], marker=marker, color=color, markersize=4, linestyle="",
                    label=f"_{status}", transform=axes.get_xaxis_transform() + shift, clip_on=False,
                )  # fmt: skip
                marked = True
    return marked
