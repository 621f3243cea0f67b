"""Score against context length, one panel per model and task."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ropewalk.harness.reports.plots import style
from ropewalk.harness.reports.plots.methods import methods
from ropewalk.harness.reports.plots.panel import LINE, End, draw_panel, label_ends, lost
from ropewalk.harness.reports.writing.sentences import titles
from ropewalk.harness.stats.cells import CELL, cells
from ropewalk.harness.stats.checkpoints import alike, group_name, labels
from ropewalk.harness.stats.decision import truncations
from ropewalk.harness.stats.measure import LOWER, SHARES
from ropewalk.harness.stats.seeds import ENDING, of_seeds, over_seeds

NOTE = (
    "Intervals are in the table of scores, and the differences between methods, which are paired, "
    "in differences."
)
TRUNCATED = (
    " Dash-dotted: truncation, the unscaled model reading only its trained window before these "
    "tokens."
)
TAIL = " The same last tokens are scored at every length."
BUNDLES = " A bracket joins methods whose ends nearly coincide, and gives their range."
ONE_LENGTH = "one length is no curve: differences and scores have what was measured there"
MEANS = "Lines: means of {} seeds; dots: single seeds; n is that of each seed."
SEEDS = " For shares each seed has its own thin line, and no mean is drawn."
SIGNS = {"x": "×", "+": "+", "v": "▾"}  # how a marker is written in the caption
LONGEST = 28  # letters of a name at the end of a line
MOST_LABELLED = 4  # panels whose lines are named at their ends; of more there is one legend


def make(frame: pd.DataFrame, *, seeds: bool | None = None, ending: str = ENDING) -> Figure:
    """Draw every scaling once; those with the same frequencies in all cells share a line.

    Models with the same questions have one scale of scores. With ``seeds``, by default where every
    model is one of several seeds, dots are single seeds and lines the means of the models without
    their ``ending``; of shares no mean is drawn.
    """
    if over_seeds(frame, seeds, ending):
        return _over_seeds(of_seeds(frame, ending), titles(frame))
    return curves(frame, NOTE, titles(frame))


def _over_seeds(table: pd.DataFrame, named: Mapping[str, str]) -> Figure:
    known, lengths = labels(table), table["length"].astype(str)
    names = [known[pair] for pair in zip(table["model"], table["scaling"], strict=True)]
    kinds = table["seeds"].map("{} seeds".format)
    # Panels are of one number of seeds; the best are those of all panels that can be compared.
    groups = alike(table[table["score"].notna()].rename(columns={"questions": "question"}))
    pools = {model: group_name(group) for group in groups for model in group}
    pool = table["model"].map(lambda model: pools.get(model, model))
    if pool.nunique() > 1:
        kinds += ", " + pool
    if table["trained_length"].nunique() > 1:
        kinds += table["trained_length"].map(", window of {:,} tokens".format)
    drawn = table.assign(
        model=kinds, pool=pool + " " + table["trained_length"].astype(str), scaling=names,
        low=table["least"], high=table["most"], frequencies=pd.Series(names) + " " + lengths,
    )  # fmt: skip
    means = MEANS.format(" or ".join(map(str, sorted(set(table["seeds"])))))
    shares = SEEDS if table["metric"].isin(SHARES).any() else ""
    return curves(drawn, means + shares, named)


def curves(frame: pd.DataFrame, about: str, named: Mapping[str, str]) -> Figure:
    """Draw every scaling once; those with the same frequencies in all cells share a line.

    A frame that has the scores of seeds in the column ``single`` gets their dots. ``about`` says in
    the caption what is drawn, ``named`` has the titles of tasks. Raises ValueError where there is
    no score, or one length.
    """
    known, kin = methods(frame), alike(frame)
    table = cells(frame)
    if "single" in frame:
        table = table.merge(frame[[*CELL, "single"]], on=CELL)
    table = known.drawn(table)
    if table["score"].isna().all():
        raise ValueError(f"no scores to draw: the cells are {', '.join(table['status'].unique())}")
    if table.groupby(["model", "task"])["length"].nunique().max() == 1:
        raise ValueError(ONE_LENGTH)
    every = list(table.groupby(["model", "task"], sort=False))
    groups, left_out = style.shown_part(every, "panels")
    truncated = {} if "single" in frame else truncations(frame)
    labelled = len(groups) <= MOST_LABELLED and style.REST not in known.look.values()
    labelled = labelled and max(map(len, known.look)) <= LONGEST
    columns = style.columns_for(len(groups), table["task"].nunique(), most=2 if labelled else 3)
    lines = max(rows["scaling"].nunique() for _, rows in groups) + 3
    tall = max(style.paper().tall(2.7), LINE * lines + 0.9) if labelled else style.paper().tall(2.7)
    figure, panels = style.sheet(len(groups), columns, panel_height=tall)
    room = figure.get_size_inches()[0] / columns - (1.75 if labelled else 0.65)
    above = 9 if lost(table) else 2
    several = "single" in table or len({model for (model, _), _ in groups}) > 1
    first: dict[tuple[str, str], Axes] = {}
    for axes, ((model, task), rows) in zip(panels, groups, strict=True):
        models = next((some for some in kin if model in some), [model])
        if (like := first.setdefault((str(models[0]), str(task)), axes)) is not axes:
            axes.sharey(like)
        scale = table[(table["task"] == task) & table["model"].isin(models)]
        draw_panel(axes, rows, known.look, scale=scale, room=room, above=above)
        cut = truncated.get((str(model), str(task)))
        if cut:
            axes.hlines(cut[1], cut[0], rows["length"].max(), color=style.GREY, linewidth=1.2,
                        linestyle="-.", zorder=1, label="_truncation")  # fmt: skip
        if labelled:
            _name_ends(axes, rows, known.look, cut and cut[1], tall - 0.9)
        head = f"{model}: {named[str(task)]}" if several else named[str(task)]
        style.tidy(axes, head, room=room + labelled, above=above + style.SIZE + 2)
        metric = str(rows["metric"].iloc[0])
        label = metric.replace("_", " ").capitalize() + " (%)" * (metric in SHARES)
        axes.set_ylabel(label, fontsize=style.SIZE)
        unit = "tokens" if columns > 2 or labelled else "tokens, trained windows"
        axes.set_xlabel(f"Context length ({unit})", fontsize=style.SIZE)
    caption = _caption(pd.concat([rows for _, rows in groups]), frame, about, named)
    caption += (TRUNCATED if truncated else "") + (BUNDLES if labelled else "") + left_out
    known.finish(figure, panels, caption, legend=not labelled)
    return figure


def _name_ends(
    axes: Axes, rows: pd.DataFrame, look: Mapping[str, style.Look], cut: float | None, tall: float
) -> None:
    """Name the lines of a panel where they end, each in its colour."""
    share = rows["metric"].iloc[0] in SHARES
    scale, longest = 100 if share else 1, int(rows["length"].max())
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()

    lines = []
    for row in (
        rows.dropna(subset="score").groupby("scaling", sort=False).tail(1).to_dict("records")
    ):
        scores = row["single"] if share and "single" in row else [row["score"]]
        name = str(row["scaling"])
        lines.append((name, int(row["length"]), scores, look[name].color))
    if cut is not None:
        lines.append(("truncation", longest, [cut], style.GREY))
    ends = []
    for name, length, scores, color in lines:
        height = float(to_axes.transform((length, median(scores)))[1])
        early = length < longest
        label = f"{name} (to {style.length_label(length)})" if early else name
        low, high = scale * min(scores), scale * max(scores)
        ends.append(End(label, length, height, color, low, high, early))
    largest = max((abs(end.high) for end in ends), default=0)
    written = "{:.0f}" if share or largest >= 1000 else "{:.1f}" if largest >= 10 else "{:.3g}"
    label_ends(axes, ends, tall, written)


def _caption(table: pd.DataFrame, frame: pd.DataFrame, about: str, named: Mapping[str, str]) -> str:
    counts = []
    for task, n in table.dropna(subset="score").groupby("task", sort=False)["n"]:
        counts.append(f"{' to '.join(map(str, sorted({n.min(), n.max()})))} ({named[str(task)]})")
    marks = [f"{SIGNS[mark]} {name.replace('_', ' ')}." for name, mark in lost(table).items()]
    tail = TAIL if "protocol" in frame and frame["protocol"].eq("tail").any() else ""
    sides = {
        ("lower" if metric in LOWER else "higher", metric) for metric in table["metric"].unique()
    }
    better = " and ".join(f"{side} {metric}" for side, metric in sorted(sides))
    better = f"{better[0].upper()}{better[1:]} {'are' if len(sides) > 1 else 'is'} better."
    models = f"{table['model'].iloc[0]}. " if table["model"].nunique() == 1 else ""
    return " ".join(
        [f"{models}{better} n per point: {', '.join(counts)}.",
         f"{about}{tail}", *marks]
    )  # fmt: skip
