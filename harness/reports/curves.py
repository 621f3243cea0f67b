"""Score against context length, one panel per model and task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter
from matplotlib.transforms import ScaledTranslation

from ropewalk.harness.reports import _style as style
from ropewalk.harness.reports._text import titles
from ropewalk.harness.reports.seeds import ENDING, over_seeds
from ropewalk.harness.reports.seeds import make as of_seeds
from ropewalk.harness.stats.cells import cell_scores, records
from ropewalk.harness.stats.checkpoints import labels
from ropewalk.harness.stats.decision import truncations
from ropewalk.harness.stats.measure import LOWER, SHARES
from ropewalk.harness.stats.reach import KEPT, own_score

TABLES = " Intervals and paired differences are in the tables."
TRUNCATED = (
    " Dash-dotted: truncation, the unscaled model reading only its trained window before the same "
    "tokens."
)
LEAST = (
    " Dotted: {:g} % of the unscaled model's score at the shortest length; while a method stays "
    "above, its length is effective."
)
SEEDS = (
    " Lines: means of {} seeds; dots: single seeds; n is that of each seed. For shares each seed "
    "has its own thin line, and no mean is drawn."
)
# status: marker above the panel, and how it is written in the caption
LOST = {"out_of_memory": ("x", "×"), "not_finite": ("+", "+"), "failed": ("v", "▾")}
LOG_FROM = 3  # the ratio of largest to smallest perplexity from which the axis is logarithmic
LONGEST = 28  # letters of a name at the end of a line
MOST_LABELLED = 4  # panels whose lines are named at their ends; with more there is one legend
LINE = 0.122  # inches of a line of text


@style.styled
def make(
    frame: pd.DataFrame, *, seeds: bool | None = None, ending: str = ENDING, kept: float = KEPT
) -> Figure:
    """Draw every scaling once; those with the same frequencies in all cells share a line.

    A panel in which every score is 0 is left out. With ``seeds``, by default where every model is
    one of several seeds, dots are single seeds and lines the means of the models without their
    ``ending``; no mean of shares is drawn. A dotted line marks the share ``kept`` of the unscaled
    model's score, up to which a length is effective. Raises ValueError if there is no score or one
    length.
    """
    named, about, cuts = titles(frame), TABLES, dict[tuple[str, str], tuple[int, float]]()
    least = dict[tuple[str, str], float]()  # of the scores of a panel, for an effective length
    if over_seeds(frame, seeds, ending):
        table = _by_seeds(of_seeds(frame, ending=ending))
        known = style.methods(table)
        about += SEEDS.format(" or ".join(map(str, sorted(set(table["seeds"])))))
    else:
        table, known, cuts = cell_scores(frame), style.methods(frame), truncations(frame)
        for (model, task), rows in table[table["metric"].isin(SHARES)].groupby(["model", "task"]):
            if (own := own_score(rows, 0)) is not None:
                least[str(model), str(task)] = kept * float(own["score"])
    table = known.drawn(table)
    scored = table.groupby(["model", "task"])["score"].transform("max") > 0
    if table["score"].isna().all():
        raise ValueError(f"no scores to draw: the cells are {', '.join(table['status'].unique())}")
    if not scored.any():
        raise ValueError("every score is 0")
    if table[scored].groupby(["model", "task"])["length"].nunique().max() == 1:
        raise ValueError("one length is no curve: the tables have what was measured there")
    lost = [n for n in LOST if table["status"][table["score"].isna()].str.contains(n).any()]
    left = [named[str(task)] for task in table["task"][~scored].unique()]
    every = list(table[scored].groupby(["model", "task"], sort=False))
    groups, left_out = style.shown_part(every, "panels")
    left_out += f" Left out, because every score is 0: {', '.join(left)}." if left else ""
    labelled = len(groups) <= MOST_LABELLED and style.REST not in known.look.values()
    labelled = labelled and max(map(len, known.look)) <= LONGEST
    several, kinds = table["model"].nunique() > 1, table["task"].nunique()
    most = 2 if labelled else 3
    columns = style.columns_for(len(groups), kinds if several and 1 < kinds < most else most)
    lines = max(rows["scaling"].nunique() for _, rows in groups) + 1
    height = max(2.7, LINE * lines + 0.9 if labelled else 0)
    figure, panels, room = style.sheet(len(groups), columns, height)
    room -= 1.1 * labelled
    first: dict[str, Axes] = {}
    for axes, ((model, task), rows) in zip(panels, groups, strict=True):
        if first.setdefault(str(task), axes) is not axes:
            axes.sharey(first[str(task)])
        cut = cuts.get((str(model), str(task)))
        kin = table[table["task"] == task]
        scores = kin["single"].explode() if "single" in kin else kin["score"]
        _panel(axes, rows, known.look, scores.astype(float), room)
        if cut:
            axes.hlines(cut[1], cut[0], rows["length"].max(), color=style.GREY, linewidth=1.2,
                        linestyle="-.", zorder=1, label="_truncation")  # fmt: skip
        if (str(model), str(task)) in least:
            axes.axhline(least[str(model), str(task)], color=style.GREY, linewidth=0.8,
                         linestyle=":", zorder=1, label="_least")  # fmt: skip
        if labelled:
            _name_ends(axes, rows, known.look, cut and cut[1], height - 0.9)
        head = f"{model}: {named[str(task)]}" if several else named[str(task)]
        above = 11 if lost else 4
        axes.set_title(style.folded(head, room + labelled), pad=above + style.SIZE)
        style.shade_window(axes, int(rows["trained_length"].iloc[0]), above - 2)
        metric = str(rows["metric"].iloc[0])
        axes.set_ylabel(metric.replace("_", " ").capitalize() + " (%)" * (metric in SHARES))
        axes.set_xlabel(f"Context length (tokens{', trained windows' if room > 2 else ''})")
    shown, counts = pd.concat([rows for _, rows in groups]), []
    for task, n in shown.dropna(subset="score").groupby("task", sort=False)["n"]:
        counts.append(f"{style.span(n)} ({named[str(task)]})")
    better = " and ".join(
        f"{'lower' if metric in LOWER else 'higher'} {metric}"
        for metric in shown["metric"].unique()
    )
    caption = "" if several else f"{shown['model'].iloc[0]}. "
    caption += f"Better: {better}. n per point: {', '.join(counts)}."
    caption += f"{about}{TRUNCATED if cuts else ''}{LEAST.format(100 * kept) if least else ''}"
    caption += "".join(f" {LOST[name][1]} {name.replace('_', ' ')}." for name in lost)
    known.finish(figure, panels, caption + left_out, legend=not labelled)
    return figure


def _by_seeds(table: pd.DataFrame) -> pd.DataFrame:
    known = labels(table)
    names = [known[pair] for pair in zip(table["model"], table["scaling"], strict=True)]
    panels = table["seeds"].map("{} seeds".format)
    if table["trained_length"].nunique() > 1:
        panels += table["trained_length"].map(", window of {:,} tokens".format)
    signs = pd.Series(names) + " " + table["length"].astype(str)
    return table.assign(model=panels, scaling=names, frequencies=signs)


def _panel(
    axes: Axes,
    table: pd.DataFrame,
    look: Mapping[str, style.Look],
    scores: pd.Series[float],
    room: float,
) -> None:
    """Draw the cells of one model and task into a panel ``room`` inches wide.

    ``scores`` are those of all panels with the same axis.
    """
    curves = dict(tuple(table.groupby("scaling", sort=False)))
    for index, name in enumerate(name for name in look if name in curves):
        # Later markers are smaller, so that several in one place are seen to be several.
        _curve(axes, curves[name], name, look[name], 5.8 - 1.8 * index / len(look))
    metric = table["metric"].iloc[0]
    if metric in SHARES:
        axes.set_ylim(-0.03, 1.03)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    elif metric == "perplexity" and scores.max() > LOG_FROM * scores.min():
        style.log_axis(axes, "y", scores.min(), scores.max())
    lengths, trained = sorted(map(int, table["length"].unique())), table["trained_length"].iloc[0]
    first, last = min(*lengths, trained), max(*lengths, trained)
    pad = max(1.1, (last / first) ** 0.05)
    inches = [
        room * math.log2(n / first * pad) / math.log2(pad * pad * last / first) for n in lengths
    ]
    axes.set_xscale("log", base=2)
    axes.set_xlim(first / pad, last * pad)
    ticks = [style.tick_label(length, trained) for length in lengths]
    axes.set_xticks(lengths, style.thinned(ticks, inches))
    axes.xaxis.set_minor_locator(NullLocator())
    _mark_lost(axes, table, look)
    for row in table[table["score"].notna() & (table["status"] != "ok")].itertuples():
        axes.annotate(  # how many samples the point has, where it lacks some
            str(row.status).split(" ok")[0], (row.length, row.score), (0, -3), ha="center",
            va="top", textcoords="offset points", fontsize=style.SIZE - 2, color=style.GREY,
        )  # fmt: skip


def _curve(axes: Axes, rows: pd.DataFrame, name: str, look: style.Look, size: float) -> None:
    """Draw scores as a line that breaks where there is none, and the dots of single seeds.

    Means of shares are not drawn: of seeds that find all keys and seeds that find none, the mean is
    no seed's score.
    """
    edge: dict[str, Any] = {
        "markeredgecolor": "white", "markeredgewidth": 0.6, "zorder": 1.5 + look.width,
        "color": look.color, "marker": look.marker,
    }  # fmt: skip
    seeds = "single" in rows
    share = seeds and rows["metric"].iloc[0] in SHARES
    axes.plot(
        rows["length"], rows["score"] * (math.nan if share else 1), **edge, label=name,
        linestyle=look.linestyle, linewidth=look.width, markersize=0 if seeds else size,
    )  # fmt: skip
    if seeds:
        single = pd.DataFrame([of if isinstance(of, tuple) else () for of in rows["single"]])
        for scores in (single[seed] for seed in single):
            axes.plot(
                rows["length"], scores, **edge, markersize=3.6, linewidth=0.5, label="_seed",
                linestyle=look.linestyle if share else "",
            )  # fmt: skip


def _mark_lost(axes: Axes, table: pd.DataFrame, look: Mapping[str, style.Look]) -> None:
    """Mark above the panel which methods have no score at a length; one grey mark if none has."""
    gone = table[table["score"].isna()]
    for status, (marker, _) in LOST.items():
        for length, rows in gone[gone["status"].str.contains(status)].groupby("length"):
            everyone = len(rows) > 1 and len(rows) == (table["length"] == length).sum()
            colors = [style.GREY] if everyone else [look[name].color for name in rows["scaling"]]
            for index, color in enumerate(colors):
                aside = 5.5 * (index - (len(colors) - 1) / 2)
                shift = ScaledTranslation(aside / 72, 5 / 72, axes.figure.dpi_scale_trans)
                axes.plot(
                    [int(str(length))], [1], marker=marker, color=color, markersize=4, linestyle="",
                    label=f"_{status}", clip_on=False,
                    transform=axes.get_xaxis_transform() + shift,
                )  # fmt: skip


def _name_ends(
    axes: Axes, rows: pd.DataFrame, look: Mapping[str, style.Look], cut: float | None, inches: float
) -> None:
    """Name the lines of a panel of so many inches where they end, each in its colour."""
    share, longest = rows["metric"].iloc[0] in SHARES, int(rows["length"].max())
    ends: list[tuple[str, int, Sequence[float], str]] = []
    for row in records(rows.dropna(subset="score").groupby("scaling", sort=False).tail(1)):
        scores = row["single"] if share and "single" in row else [row["score"]]
        ends.append((row["scaling"], row["length"], scores, look[row["scaling"]].color))
    if cut is not None:
        ends.append(("truncation", longest, [cut], style.GREY))
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    places = [float(to_axes.transform((end[1], median(end[2])))[1]) for end in ends]
    order = sorted(range(len(ends)), key=places.__getitem__)
    centers = spread([places[index] for index in order], LINE / inches)
    scale, largest = 100 if share else 1, max((abs(max(end[2])) for end in ends), default=0)
    written = "{:.0f}" if share or largest >= 1000 else "{:.1f}" if largest >= 10 else "{:.3g}"
    for index, center in zip(order, centers, strict=True):
        name, length, scores, color = ends[index]
        early = f" (to {style.length_label(length)})" if length < longest else ""
        seeds = dict.fromkeys(written.format(scale * end) for end in (min(scores), max(scores)))
        value = " to ".join(seeds)
        axes.annotate(
            f"{name}{early}  {value}", (length, places[index]), (1.08, center), va="center",
            xycoords=("data", "axes fraction"), textcoords="axes fraction", color=color,
            fontsize=style.SIZE - 1, annotation_clip=False,
            arrowprops=None if early else {
                "arrowstyle": "-", "color": "0.75", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )  # fmt: skip


def spread(places: Sequence[float], line: float) -> list[float]:
    """Return heights near these rising places at which labels of one line do not touch.

    They stay inside the panel where it is high enough, else they hang out below.
    """
    centers, floor = [], -0.03
    for place in places:
        centers.append(max(place, floor + line / 2))
        floor = centers[-1] + line / 2
    ceiling = max([1.02, *places[-1:]])
    for index in reversed(range(len(centers))):
        centers[index] = min(centers[index], ceiling - line / 2)
        ceiling = centers[index] - line / 2
    return centers
