"""Forest plots: one row per method with its difference and interval; outliers are text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ropewalk.harness.reports.plots.style import GREY, SIZE

ROW = 0.17  # inches
OFF_SCALE = 3.0  # times as far as the middle row: such a row is text at the edge


@dataclass(frozen=True)
class Row:
    """One row of a forest plot.

    ``value`` is drawn with a thick bar from ``low`` to ``high``, and a thin one to ``bound``; a
    hollow marker is not ``full``. A row without a value has its ``text`` instead.
    """

    name: str
    value: float | None
    low: float | None
    high: float | None
    color: str
    marker: str
    full: bool = True
    bound: float | None = None
    text: str = ""
    note: str = ""

    def scaled(self, by: float) -> Row:
        """Return the row in another unit, such as percent."""
        value, low, high, bound = (
            None if end is None else by * end
            for end in (self.value, self.low, self.high, self.bound)
        )
        return replace(self, value=value, low=low, high=high, bound=bound)

    @property
    def reach(self) -> float:
        """Return how far from 0 the row is drawn."""
        ends = (self.value, self.low, self.high, self.bound)
        return max((abs(end) for end in ends if end is not None), default=0.0)


def on_scale(rows: Sequence[Row]) -> float:
    """Return how far from 0 an axis reaches that shows most rows, in their unit."""
    drawn = [row for row in rows if row.value is not None and row.reach]
    if not drawn:
        return 1.0
    limit = OFF_SCALE * median(row.reach for row in drawn)
    return max(min(row.reach, limit) for row in drawn if abs(row.value or 0) <= limit)


def draw_rows(
    axes: Axes, rows: Sequence[Row], reach: float, written: Callable[[float], str]
) -> None:
    """Draw rows from the top, around a line at 0, as far as ``reach``.

    A row whose value is farther is text at the edge, as ``written`` prints it.
    """
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    drawn = [row for row in rows if row.value is not None and abs(row.value) <= reach]
    ends = [end for row in drawn for end in (row.value, row.low, row.high, row.bound) if end]
    low, high = max(-reach, min(0.0, *ends, 0.0)), min(reach, max(0.0, *ends, 0.0))
    pad = 0.06 * (high - low) or 0.05
    axes.set_xlim(low - pad, high + pad)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    for index, row in enumerate(rows):
        _draw(axes, row, index, reach, written)
    axes.xaxis.set_major_locator(MaxNLocator(4, min_n_ticks=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.6g}".replace("-", "−")))


def _draw(axes: Axes, row: Row, index: int, reach: float, written: Callable[[float], str]) -> None:
    across = axes.get_yaxis_transform()
    if row.value is None:
        axes.text(0, index, row.text, ha="center", va="center", color=GREY, fontsize=SIZE - 1)
    elif abs(row.value) > reach:
        right = row.value > 0
        text = f"{written(row.value)} ▸" if right else f"◂ {written(row.value)}"
        axes.text(
            0.99 if right else 0.01, index, text, transform=across, va="center",
            ha="right" if right else "left", color=row.color, fontsize=SIZE - 1,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    else:
        if row.low is not None and row.high is not None:
            axes.hlines(index, row.low, row.high, color=row.color, linewidth=2.2, alpha=0.55)
        if row.bound is not None:
            axes.hlines(index, row.value, row.bound, color=row.color, linewidth=0.9)
            axes.plot(row.bound, index, "|", color=row.color, markersize=5, label="_bound")
        face = row.color if row.full else "white"
        axes.plot(
            row.value, index, row.marker or "o", color=row.color, markerfacecolor=face,
            markersize=4.8, markeredgewidth=0.9, label=row.name,
        )  # fmt: skip
        ends = [end for end in (row.low, row.high, row.bound) if end is not None]
        for x, sign, side, end in (
            (0.0, "◂", "left", -min(ends, default=0.0)), (1.0, "▸", "right", max(ends, default=0.0))
        ):  # fmt: skip
            if end > reach:
                axes.text(x, index, sign, ha=side, va="center", transform=across, color=row.color,
                          fontsize=SIZE - 1)  # fmt: skip
        if row.note:
            axes.annotate(
                row.note, (row.value, index), (0, 3.5), textcoords="offset points", ha="center",
                fontsize=5, color=GREY,
            )  # fmt: skip
