"""Score against context length, one panel per model and task."""

from __future__ import annotations

import math
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullLocator,
    PercentFormatter,
    StrMethodFormatter,
)

from ropewalk.harness.reports import _style as style
from ropewalk.harness.reports.cells import KEPT, own_score
from ropewalk.harness.reports.seeds import ENDING, all_seeds
from ropewalk.harness.reports.seeds import make as of_seeds
from ropewalk.harness.stats.cells import cell_scores, labels
from ropewalk.harness.stats.decision import truncations
from ropewalk.harness.stats.measure import LOWER, SHARES

SHADED = " Shaded: lengths of pretraining. Intervals and paired differences are in the tables."
TRUNCATED = (
    " Dash-dotted: truncation, the unscaled model reading only its trained window before the same "
    "tokens."
)
LEAST = (
    " Dashed in grey: {:g} % of the unscaled model's score at the shortest length; while a method "
    "stays above, its length is effective."
)
LOST = " Where a method has no score, its line is missing; the tables say why."
SEEDS = (
    " Lines: means of {} seeds; dots: single seeds; n is that of each seed. For shares each seed "
    "has its own thin line, and no mean is drawn."
)
LOG_FROM = 3  # the ratio of largest to smallest perplexity from which the axis is logarithmic


@style.drawing()
def make(frame: pd.DataFrame, *, ending: str = ENDING, kept: float = KEPT) -> Figure:
    """Draw every scaling once; those with the same frequencies in all cells share a line.

    A panel in which every score is 0 is left out. Where every model is one of several seeds, dots
    are single seeds and lines the means of the models without their ``ending``; no mean of shares
    is drawn. A dotted line marks the share ``kept`` of the unscaled
    model's score, up to which a length is effective. Raises ValueError if there is no score or one
    length.
    """
    about, cuts = SHADED, dict[tuple[str, str], tuple[int, float]]()
    if all_seeds(frame, ending):
        table = _by_seeds(of_seeds(frame, ending=ending))
        known = style.methods(table)
        about += SEEDS.format(" or ".join(map(str, sorted(set(table["seeds"])))))
    else:
        table, known, cuts = cell_scores(frame), style.methods(frame), truncations(frame)
    table = known.drawn(table)
    if table["score"].isna().all():
        raise ValueError(f"no scores to draw: the cells are {', '.join(table['status'].unique())}")
    table = table[table.groupby(["model", "task"])["score"].transform("max") > 0]
    if table.empty:
        raise ValueError("every score is 0")
    groups = table.groupby(["model", "task"], sort=False)
    if groups["length"].nunique().max() == 1:
        raise ValueError("one length is no curve: the tables have what was measured there")
    several, least = table["model"].nunique() > 1, False
    figure, panels, letters = style.sheet(len(groups), 2.7)
    first: dict[str, Axes] = {}
    for axes, (_, rows) in zip(panels, groups, strict=True):
        model, task = (str(rows[name].iloc[0]) for name in ("model", "task"))
        if first.setdefault(task, axes) is not axes:
            axes.sharey(first[task])
        for name in (name for name in known.look if name in set(rows["scaling"])):
            _curve(axes, rows[rows["scaling"] == name], name, known.look[name])
        _axes(axes, rows, table[table["task"] == task])
        grey: dict[str, Any] = {"color": style.GREY, "zorder": 1}
        if (model, task) in cuts:
            window, score = cuts[model, task]
            axes.hlines(score, window, rows["length"].max(), linewidth=1.2, linestyle="-.",
                        label="truncation", **grey)  # fmt: skip
        own = None if "single" in rows else own_score(rows, 0)
        if own is not None and own["metric"] in SHARES:
            least = True
            axes.axhline(kept * own["score"], linewidth=0.8, linestyle="--",
                         label=f"{100 * kept:g} % of none", **grey)  # fmt: skip
        title = f"{model}: {task}" if several else task
        axes.set_title(fill(title, letters))
    counts = [
        f"{style.span(n)} ({task})"
        for task, n in table.dropna(subset="score").groupby("task", sort=False)["n"]
    ]
    better = " and ".join(
        f"{'lower' if metric in LOWER else 'higher'} {metric}"
        for metric in table["metric"].unique()
    )
    caption = "" if several else f"{table['model'].iloc[0]}. "
    caption += f"Better: {better}. n per point: {', '.join(counts)}.{about}"
    caption += TRUNCATED * bool(cuts) + LEAST.format(100 * kept) * least
    caption += LOST * bool(table["score"].isna().any())
    known.finish(figure, caption)
    return figure


def _by_seeds(table: pd.DataFrame) -> pd.DataFrame:
    names = labels(table)
    panels = table["seeds"].map("{} seeds".format)
    if table["trained_length"].nunique() > 1:
        panels += table["trained_length"].map(", window of {:,} tokens".format)
    signs = pd.Series(names) + " " + table["length"].astype(str)
    return table.assign(model=panels, scaling=names, frequencies=signs)


def _axes(axes: Axes, rows: pd.DataFrame, kin: pd.DataFrame) -> None:
    """Set the axes of a panel; ``kin`` are the rows of all panels of its task."""
    metric, trained = rows["metric"].iloc[0], int(rows["trained_length"].iloc[0])
    scores = kin["single"].explode().astype(float) if "single" in kin else kin["score"]
    low, high = scores.min(), scores.max()
    if metric in SHARES:
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    elif metric == "perplexity" and high > LOG_FROM * low:
        decades = math.log10(high / low)
        subs = (1, 1.5, 2, 3, 4, 5, 7) if decades < 1.5 else (1, 2, 5) if decades < 3 else (1,)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=9))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    lengths = sorted(rows["length"].unique())
    first, last = min(lengths[0], trained), max(lengths[-1], trained)
    pad = max(1.1, (last / first) ** 0.05)
    style.length_axis(axes, first / pad, last * pad, trained)
    axes.xaxis.set_major_locator(FixedLocator(lengths, nbins=style.MOST_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: style.tick_label(round(x), trained)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(metric.replace("_", " ").capitalize() + " (%)" * (metric in SHARES))
    axes.set_xlabel("Context length (tokens)")
    for row in rows[rows["score"].notna() & (rows["status"] != "ok")].itertuples():
        axes.annotate(  # how many samples the point has, where it lacks some
            str(row.status).split(" ok")[0], (row.length, row.score), (0, -3), ha="center",
            va="top", textcoords="offset points", fontsize=style.SIZE - 2, color=style.GREY,
        )  # fmt: skip


def _curve(axes: Axes, rows: pd.DataFrame, name: str, look: style.Look) -> None:
    """Draw scores as a line that breaks where there is none, and the dots of single seeds.

    Means of shares are not drawn: of seeds that find all keys and seeds that find none, the mean is
    no seed's score.
    """
    edge: dict[str, Any] = {
        "markeredgecolor": "white", "markeredgewidth": 0.6, "zorder": 1.5 + look.width,
        "color": look.color, "marker": look.marker, "markersize": 4.2,
    }  # fmt: skip
    share = rows["metric"].iloc[0] in SHARES
    if "single" not in rows:
        axes.plot(rows["length"], rows["score"], look.linestyle, label=name,
                  linewidth=look.width, **edge)  # fmt: skip
        return
    means = rows["score"] * (math.nan if share else 1)
    axes.plot(rows["length"], means, look.linestyle, label=name, linewidth=look.width,
              markevery=[], **edge)  # fmt: skip  # marked in the legend alone
    single = pd.DataFrame([of if isinstance(of, tuple) else () for of in rows["single"]])
    for seed in single:
        axes.plot(rows["length"], single[seed], linestyle=look.linestyle if share else "none",
                  linewidth=0.5, label="_seed", **edge)  # fmt: skip
