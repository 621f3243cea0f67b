"""One panel of curves: lines with their bands and names, axes by metric, window, lost cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
)
from matplotlib.transforms import ScaledTranslation

from ropewalk.harness.reports.plots import style
from ropewalk.harness.stats.measure import SHARES

LOG_FROM = 3  # the ratio of largest to smallest perplexity from which the axis is logarithmic
MOST_TICKS = 9
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
STEPS: tuple[tuple[float, ...], ...] = (  # from many ticks in a decade to one
    (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
    (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1,),
)  # fmt: skip
LOST = {"out_of_memory": "x", "not_finite": "+", "failed": "v"}  # status: marker
LINE = 0.122  # inches of a line of text
HAIR = 0.025  # of the height of a panel: lines that end nearer are a bundle


def lost(table: pd.DataFrame) -> dict[str, str]:
    """Return status and marker of what kept a cell of the table from having a score."""
    statuses = table["status"][table["score"].isna()]
    return {name: LOST[name] for name in LOST if statuses.str.contains(name).any()}


def draw_panel(
    axes: Axes,
    table: pd.DataFrame,
    look: Mapping[str, style.Look],
    *,
    scale: pd.DataFrame,
    room: float,
    above: float,
) -> None:
    """Draw the cells of one model and task into a panel ``room`` inches wide.

    ``scale`` has the cells of all panels with the same axis of scores.
    ``above`` points over the panel are left to the marks of lost cells.
    """
    curves = dict(tuple(table.groupby("scaling", sort=False)))
    for index, scaling in enumerate(name for name in look if name in curves):
        # Later markers are smaller, so that several in one place are seen to be several.
        _curve(axes, curves[scaling], scaling, look[scaling], 5.8 - 1.8 * index / len(look))
    ends = scale["single"].dropna().explode() if "single" in scale else scale["score"]
    metric, least, most = scale["metric"].iloc[0], float(ends.min()), float(ends.max())
    if metric in SHARES:
        axes.set_ylim(-0.03, 1.03)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    elif metric == "perplexity" and most > LOG_FROM * least:
        plain_log(axes, "y", least, most)
    trained_length = int(table["trained_length"].iloc[0])
    _length_axis(axes, sorted(map(int, table["length"].unique())), trained_length, room)
    _mark_lost(axes, table, look)
    for row in table[table["score"].notna() & (table["status"] != "ok")].itertuples():
        axes.annotate(  # how many samples the point has, where it lacks some
            str(row.status).split(" ok")[0], (row.length, row.score), (0, -3), ha="center",
            va="top", textcoords="offset points", fontsize=style.SIZE - 2, color=style.GREY,
        )  # fmt: skip
    shade_window(axes, trained_length, above)


def _curve(axes: Axes, rows: pd.DataFrame, label: str, look: style.Look, size: float) -> None:
    """Draw scores as a line that breaks where there is none.

    If there are several seeds, each has its dots. Means of shares are not drawn: of seeds that find
    all keys and seeds that find none, the mean is no seed's score.
    """
    plain: dict[str, Any] = {"color": look.color, "linestyle": look.linestyle, "label": label}
    edge: dict[str, Any] = {
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
        "zorder": 1.5 + look.width,
    }
    lengths = rows["length"]
    if "single" not in rows:
        axes.plot(
            lengths, rows["score"], **plain, **edge, linewidth=look.width, marker=look.marker,
            markersize=size,
        )  # fmt: skip
        return
    every = [scores if isinstance(scores, tuple) else () for scores in rows["single"]]
    most = max(map(len, every))
    seeds = [[scores[seed] if scores else math.nan for scores in every] for seed in range(most)]
    share = rows["metric"].iloc[0] in SHARES
    line = [math.nan] * len(rows) if share else rows["score"]
    axes.plot(lengths, line, **plain, linewidth=look.width, marker=look.marker, markersize=0)
    for scores in seeds:
        axes.plot(
            lengths, scores, **edge, color=look.color, marker=look.marker, markersize=3.6,
            linestyle=look.linestyle if share else "", linewidth=0.5, label="_seed",
        )  # fmt: skip


def plain_log(
    axes: Axes, axis: Literal["x", "y"], low: float, high: float, most: int = MOST_TICKS
) -> None:
    """Make an axis logarithmic, with ``most`` plain numbers at steps that suit its range."""
    axes.set(**{f"{axis}scale": "log"})
    drawn = axes.xaxis if axis == "x" else axes.yaxis
    fitting = (ticks for subs in STEPS if len(ticks := _ticks(subs, low, high)) <= most)
    ticks = next(fitting, list[float]())
    other = MaxNLocator(4) if high < 10 * low else LogLocator(numticks=6)
    drawn.set_major_locator(FixedLocator(ticks) if len(ticks) > 1 else other)
    drawn.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    drawn.set_minor_locator(NullLocator())


def _number(value: float) -> str:
    """Return "0.5", "20,000", from a million on "10⁶" or "2·10⁶"."""
    if value < 1e6:
        return f"{value:,.10g}"
    first, power = f"{value:.6e}".split("e")
    times = "" if float(first) == 1 else f"{float(first):g}·"
    return f"{times}10{str(int(power)).translate(RAISED)}"


def _ticks(subs: Sequence[float], low: float, high: float) -> list[float]:
    """Return the multiples of powers of ten within a range, drawn a little wider than it is."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = (sub * 10.0**decade for decade in decades for sub in subs)
    pad = (high / low) ** 0.04
    return [float(f"{tick:.12g}") for tick in every if low / pad <= tick <= high * pad]


def _length_axis(axes: Axes, lengths: list[int], trained_length: int, room: float) -> None:
    axes.set_xscale("log", base=2)
    first, last = min(*lengths, trained_length), max(*lengths, trained_length)
    pad = max(1.1, (last / first) ** 0.05)
    axes.set_xlim(first / pad, last * pad)
    inches = room / math.log2(pad * pad * last / first)
    labels = [style.tick_label(length, trained_length) for length in lengths]
    places = [inches * math.log2(length) for length in lengths]
    axes.set_xticks(lengths, style.spaced(labels, places))
    axes.xaxis.set_minor_locator(NullLocator())


def shade_window(axes: Axes, trained_length: int, above: float) -> None:
    """Shade the lengths of pretraining and name their end, ``above`` points over the panel."""
    low, high = axes.get_xlim()
    axes.axvspan(low, trained_length, color="0.94", linewidth=0, zorder=0)
    axes.axvline(trained_length, color=style.GREY, linewidth=0.8, linestyle=":", zorder=1)
    left = trained_length**2 < low * high
    axes.annotate(
        "trained length", (trained_length, 1), (0, above), xycoords=axes.get_xaxis_transform(),
        textcoords="offset points", ha="left" if left else "right", color=style.GREY,
        fontsize=style.SIZE - 1,
    )  # fmt: skip


def _mark_lost(axes: Axes, table: pd.DataFrame, look: Mapping[str, style.Look]) -> None:
    gone = table[table["score"].isna()]
    for status, marker in lost(table).items():
        rows = gone[gone["status"].str.contains(status)]
        for length in map(int, rows["length"].unique()):
            names = rows["scaling"][rows["length"] == length]
            everyone = len(names) > 1 and len(names) == (table["length"] == length).sum()
            colors = [style.GREY] if everyone else [look[name].color for name in names]
            for index, color in enumerate(colors):
                aside = 5.5 * (index - (len(colors) - 1) / 2)
                shift = ScaledTranslation(aside / 72, 5 / 72, axes.figure.dpi_scale_trans)
                axes.plot(
                    [length], [1], marker=marker, color=color, markersize=4,
                    linestyle="", label=f"_{status}", clip_on=False,
                    transform=axes.get_xaxis_transform() + shift,
                )  # fmt: skip


def by_length(
    table: pd.DataFrame, panel: Callable[[Axes, pd.DataFrame], None]
) -> tuple[Figure, list[Axes]]:
    """Draw a panel of every length's rows, titled with model, length and relative length."""
    groups = list(table.groupby("length"))
    columns = style.columns_for(len(groups), 1)
    figure, panels = style.sheet(len(groups), columns, panel_height=2.6)
    room = figure.get_size_inches()[0] / columns - 0.65
    for axes, (length, rows) in zip(panels, groups, strict=True):
        panel(axes, rows)
        first = rows.iloc[0]
        name = f"{first['model']}, {style.length_label(int(str(length)))} tokens"
        style.tidy(axes, f"{name} ({first['length'] / first['trained_length']:.3g}×)", room=room)
    return figure, panels


@dataclass(frozen=True)
class End:
    """Where a line ends: ``place`` is its height in the panel, 0 to 1.

    ``low`` and ``high`` are its value, of several seeds the least and the largest; ``early`` says
    that it ends before the others.
    """

    name: str
    x: float
    place: float
    color: str
    low: float
    high: float
    early: bool = False


def label_ends(axes: Axes, ends: Sequence[End], tall: float, written: str) -> None:
    """Name every line at its end in a panel ``tall`` inches high; a bundle has its range.

    ``written`` is how a value is printed: ``"{:.1f}"``.
    """
    groups: list[list[End]] = []  # from the lowest, those within a hair of each other together
    for end in sorted(ends, key=lambda end: end.place):
        if groups and end.place - groups[-1][-1].place < HAIR:
            groups[-1].append(end)
        else:
            groups.append([end])
    line = LINE / tall
    places = [sum(end.place for end in group) / len(group) for group in groups]
    halves = [line * (len(group) + (len(group) > 1)) / 2 for group in groups]
    centers = spread(places, halves)
    for group, center, half in zip(groups, centers, halves, strict=True):
        low, high = min(end.low for end in group), max(end.high for end in group)
        first, last = written.format(low), written.format(high)
        values = first if first == last else f"{first} to {last}"
        if len(group) == 1:
            texts = [(f"{group[0].name}  {values}", group[0].color)]
        else:
            texts = [*((end.name, end.color) for end in reversed(group)), (values, style.GREY)]
        for end in (end for end in group if not end.early):
            axes.annotate(
                "", (end.x, end.place), (1.05, center), xycoords=("data", "axes fraction"),
                textcoords="axes fraction", annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": "0.75", "linewidth": 0.5, "shrinkA": 0,
                            "shrinkB": 3},
            )  # fmt: skip
        if len(group) > 1:
            ends_of = [center - half + line * 0.15, center + half - line * 0.15]
            axes.plot([1.06, 1.06], ends_of, color="0.6", linewidth=0.8, clip_on=False,
                      transform=axes.transAxes, label="_bundle")  # fmt: skip
        for row, (text, color) in enumerate(texts):
            axes.text(
                1.08, center + half - line * (row + 0.5), text, transform=axes.transAxes,
                fontsize=style.SIZE - 1, color=color, va="center",
            )  # fmt: skip


def spread(places: Sequence[float], halves: Sequence[float]) -> list[float]:
    """Return centers near these rising places at which labels of these half heights do not touch.

    They stay inside the panel where it is high enough, else they hang out below.
    """
    centers, floor = [], -0.03
    for place, half in zip(places, halves, strict=True):
        centers.append(max(place, floor + half))
        floor = centers[-1] + half
    ceiling = max(1.02, places[-1]) if places else 1.02
    for index, half in reversed(list(enumerate(halves))):
        centers[index] = min(centers[index], ceiling - half)
        ceiling = centers[index] - half
    return centers
