"""Score against context length, one panel per model and task, with intervals."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.reports.plots.methods import methods
from harness.reports.plots.panel import MOST_BANDS, draw_panel, lost
from harness.reports.plots.style import GREY, SIZE, columns_for, paper, sheet, shown_part, tidy
from harness.stats.cells import CELL, cells
from harness.stats.checkpoints import alike, group_name, labels
from harness.stats.decision import truncations
from harness.stats.measure import SHARES
from harness.stats.seeds import ENDING, of_seeds, over_seeds

BANDS = (
    "Bands: 95 % intervals of each method alone; the methods share documents and trials, so that "
    "differences may be significant where bands overlap (differences)."
)
NO_BANDS = "Too many methods for bands: the 95 % intervals are in the table of scores."
TRUNCATED = (
    " Dash-dotted: truncation, the unscaled model reading only its trained window before these "
    "tokens."
)
TRUNCATION: dict[str, Any] = {
    "linestyle": "-.",
    "linewidth": 1.2,
    "zorder": 1,
    "label": "_truncation",
}
TAIL = "tail: the same last tokens are scored at every length."
ONE_LENGTH = "one length is no curve: differences and scores have what was measured there"
MEANS = "Thick lines: means of {} seeds; n is that of each seed."
THIN, NO_THIN = " Thin lines: single seeds.", " Too many methods for single seeds: table of scores."
SIGNS = {"x": "×", "+": "+", "v": "▾"}  # how a marker is written in the note


def make(frame: pd.DataFrame, *, seeds: bool | None = None, ending: str = ENDING) -> Figure:
    """Draw every scaling once; those with the same frequencies in all cells share a line.

    Models with the same questions have one scale of scores. With ``seeds``, by default where every
    model is one of several seeds, thick lines are the means of the models without their ``ending``
    and thin lines single seeds.
    """
    if over_seeds(frame, seeds, ending):
        return _over_seeds(of_seeds(frame, ending))
    return curves(frame, BANDS)


def _over_seeds(table: pd.DataFrame) -> Figure:
    named = labels(table)
    names = [named[pair] for pair in zip(table["model"], table["scaling"], strict=True)]
    lengths = table["length"].astype(str)
    kinds = table["seeds"].map("Mean of {} seeds".format)
    # Panels are of one number of seeds; the best are those of all panels that can be compared.
    groups = alike(table[table["score"].notna()].rename(columns={"questions": "question"}))
    pools = {model: group_name(group) for group in groups for model in group}
    pool = table["model"].map(lambda model: pools.get(model, model))
    if pool.nunique() > 1:
        kinds += ", " + pool
    if table["trained_length"].nunique() > 1:
        kinds += table["trained_length"].map(", window of {:,} tokens".format)
    drawn = table.assign(
        model=kinds,
        pool=pool + " " + table["trained_length"].astype(str),
        scaling=names,
        low=table["least"],
        high=table["most"],
        frequencies=pd.Series(names) + " " + lengths,
    )
    means = MEANS.format(" or ".join(map(str, sorted(set(table["seeds"])))))
    return curves(drawn, means + THIN, means + NO_THIN)


def curves(frame: pd.DataFrame, bands: str, without: str = NO_BANDS) -> Figure:
    """Draw every scaling once; those with the same frequencies in all cells share a line.

    A frame that has the scores of seeds in the column ``single`` gets a thin line a seed, any other
    a band from ``low`` to ``high``. ``bands`` says in the note what these are, ``without`` that the
    methods are too many for them. Raises ValueError where there is no score, or one length.
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
    groups, left_out = shown_part(every, "panels")
    columns = columns_for(len(groups), table["task"].nunique())
    figure, panels = sheet(len(groups), columns, panel_height=paper().tall(2.7))
    room = figure.get_size_inches()[0] / columns - 0.65
    look, protocols = known.look, _protocols(frame)
    truncated = {} if "single" in frame else truncations(frame)
    above = 9 if lost(table) else 2
    first: dict[tuple[str, str], Axes] = {}
    for axes, ((model, task), rows) in zip(panels, groups, strict=True):
        models = next((some for some in kin if model in some), [model])
        if (like := first.setdefault((str(models[0]), str(task)), axes)) is not axes:
            axes.sharey(like)
        scale = table[(table["task"] == task) & table["model"].isin(models)]
        draw_panel(axes, rows, look, scale=scale, room=room, above=above)
        if (model, task) in truncated:
            window, score = truncated[str(model), str(task)]
            axes.hlines(score, window, rows["length"].max(), color=GREY, **TRUNCATION)
        tidy(axes, f"{model}, {task}", room=room, above=above + SIZE + 2)
        axes.set_ylabel(_score_label(str(task), rows["metric"].iloc[0], protocols), fontsize=SIZE)
        unit = "tokens" if columns > 2 else "tokens, trained windows"
        axes.set_xlabel(f"Context length ({unit})", fontsize=SIZE)
    drawn = pd.concat([rows for _, rows in groups])
    note = _note(drawn, protocols, bands, without) + (TRUNCATED if truncated else "")
    known.finish(figure, panels, note + left_out)
    return figure


def _protocols(frame: pd.DataFrame) -> dict[str, str]:
    if "protocol" not in frame:
        return {}
    named = frame.dropna(subset="protocol").drop_duplicates("task")
    return dict(zip(named["task"], named["protocol"], strict=True))


def _score_label(task: str, metric: str, protocols: dict[str, str]) -> str:
    family = task.split(":")[0].capitalize()
    if metric in SHARES:
        return f"{family} {metric} (%),\nhigher is better"
    if metric != "perplexity":
        return family if family.lower() == metric.lower() else f"{family}, {metric}"
    protocol = protocols.get(task)
    if protocol == "tail":
        return "Perplexity (tail: of the same\nlast tokens), lower is better"
    return f"Perplexity{f' ({protocol})' if protocol else ''},\nlower is better"


def _note(table: pd.DataFrame, protocols: dict[str, str], bands: str, without: str) -> str:
    counts = []
    for task, n in table.dropna(subset="score").groupby("task", sort=False)["n"]:
        counts.append(f"{' to '.join(map(str, sorted({n.min(), n.max()})))} ({task})")
    marks = [f"{SIGNS[mark]} {name.replace('_', ' ')}." for name, mark in lost(table).items()]
    few = table["scaling"].nunique() <= MOST_BANDS
    texts = [bands if few else without] if table["low"].notna().any() else []
    tail = [TAIL] if "tail" in protocols.values() else []
    return " ".join([f"n per point: {', '.join(counts)}.", *texts, *tail, *marks])
