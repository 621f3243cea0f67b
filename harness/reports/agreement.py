"""Does perplexity predict retrieval? One against the other, a point a method, a panel a length."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from harness.reports.plots.methods import Methods, methods
from harness.reports.plots.panel import LOG_FROM, plain_log
from harness.reports.plots.paper import paper
from harness.reports.plots.style import (
    SIZE,
    columns_for,
    edge,
    length_label,
    readable_part,
    sheet,
    tidy,
)
from harness.reports.stats.agreement import METHODS, agreement, pairs

MOST_TICKS = 6  # of a narrow panel
NOTE = (
    "Bars: 95 % intervals of each score alone. ρ: Spearman's rank correlation over the methods "
    "that differ, with its 95 % interval (Bonett and Wright 2000; none of a perfect order), of "
    f"{METHODS} methods or more; -1: the lower the perplexity, the more is retrieved."
)


def make(frame: pd.DataFrame, *, evaluator: str = "none") -> Figure:
    """Draw retrieval against tail perplexity, and against that of the key tokens where it is known.

    The lengths are those beyond the trained window. ``evaluator`` is that of ``key_tokens``.
    Raises ValueError where a model lacks one of the two.
    """
    known = methods(frame)
    panel = ["order", "title", "length"]
    groups = list(pairs(frame, known.drawn, evaluator).groupby(panel, sort=False))
    shown, left_out = readable_part(groups, "panels")
    lengths = len({length for (*_, length), _ in shown})
    columns = columns_for(len(shown), min(3, lengths))
    figure, panels = sheet(len(shown), columns, panel_height=paper().tall(2.5))
    for axes, ((_, title, length), rows) in zip(panels, shown, strict=True):
        _panel(axes, rows, known)
        relative = int(str(length)) / rows["trained_length"].iloc[0]
        said = f"{title}, {length_label(int(str(length)))} ({relative:.3g}×): {agreement(rows)}"
        tidy(axes, said, room=figure.get_size_inches()[0] / columns - 0.5)
    counts = f"Methods a panel: {_range([rows['frequencies'].nunique() for _, rows in shown])}."
    replace(known, fixed=()).finish(figure, panels, f"{counts} {NOTE}{left_out}")
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, known: Methods) -> None:
    """Draw a point for every method, retrieval upwards."""
    for row in rows.to_dict("records"):
        look, x, y = known.look[row["scaling"]], row["score"], row["kept"]
        axes.hlines(y, row["low"], row["high"], color=look.color, linewidth=0.6, alpha=0.5)
        axes.vlines(
            x, row["kept_low"], row["kept_high"], color=look.color, linewidth=0.6, alpha=0.5
        )
        axes.plot(
            x, y, marker=look.marker or "o", color=look.color, markerfacecolor=look.face,
            markeredgecolor=edge(look), markersize=5, label=row["scaling"], linestyle="",
        )  # fmt: skip
    low, high = float(rows["low"].min()), float(rows["high"].max())
    if high > LOG_FROM * low:
        plain_log(axes, "x", low, high, MOST_TICKS)
    axes.set_ylim(-0.04, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    axes.set_xlabel(f"{rows['kind'].iloc[0]}, lower is better", fontsize=SIZE)
    axes.set_ylabel(f"{rows['metric'].iloc[0].capitalize()} (%)", fontsize=SIZE)


def _range(counts: list[int]) -> str:
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
