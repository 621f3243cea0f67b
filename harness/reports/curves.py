"""Score against context length, a panel per model and task, with intervals and trained window."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.reports._cells import cells, coinciding
from harness.reports._ends import fit, label_ends
from harness.reports._panel import MOST_BANDS, draw, lost
from harness.reports._style import SIZE, columns_for, foot, looks, sheet, tidy

BANDS = (
    "Bands: 95 % intervals of each method alone; the methods share documents and trials, so that "
    "they may be told apart where bands overlap (differences)."
)
NO_BANDS = "Too many methods for bands: the 95 % intervals are in the table of scores."
TAIL = "tail: the same last tokens are scored at every length."
SIGNS = {"x": "×", "+": "+", "v": "▾"}  # how a marker is written in the note


def make(frame: pd.DataFrame) -> Figure:
    """Draw every scaling once; those with the same frequencies in all cells share a line."""
    table = coinciding(cells(frame))
    if table["score"].isna().all():
        message = f"no scores to draw: the cells are {', '.join(table['status'].unique())}"
        raise ValueError(message)
    groups = list(table.groupby(["model", "task"], sort=False))
    columns = columns_for(len(groups), table["task"].nunique())
    figure, panels = sheet(len(groups), columns, panel_height=2.7)
    room = figure.get_size_inches()[0] / columns - 0.65
    look = looks(table["scaling"].unique())
    protocols = _protocols(frame)
    above = 9 if lost(table) else 2
    for axes, ((model, task), rows) in zip(panels, groups, strict=True):
        draw(axes, rows, look, room=room, above=above)
        tidy(axes, f"{model}, {task}", room=room, above=above + SIZE + 2)
        axes.set_ylabel(_words(str(task), rows["metric"].iloc[0], protocols), fontsize=SIZE)
        narrow = columns > 2
        axes.set_xlabel(f"Context length (tokens){'' if narrow else ' and stretch'}", fontsize=SIZE)
        if fit(list(look)):
            label_ends(axes, look, tall=1.7)
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    named = [] if fit(list(look)) else list(look)
    foot(figure, [lines[name] for name in named], named, _note(table, protocols))
    return figure


def _protocols(frame: pd.DataFrame) -> dict[str, str]:
    """Return the protocol of every task that has one."""
    if "protocol" not in frame:
        return {}
    named = frame.dropna(subset="protocol").drop_duplicates("task")
    return dict(zip(named["task"], named["protocol"], strict=True))


def _words(task: str, metric: str, protocols: dict[str, str]) -> str:
    """Return the label of the vertical axis."""
    family = task.split(":")[0].capitalize()
    if metric == "accuracy":
        return f"{family} accuracy (%),\nhigher is better"
    if metric != "perplexity":
        return f"{family}, {metric}"
    protocol = protocols.get(task)
    if protocol == "tail":
        return "Perplexity (tail: of the same\nlast tokens), lower is better"
    return f"Perplexity{f' ({protocol})' if protocol else ''},\nlower is better"


def _note(table: pd.DataFrame, protocols: dict[str, str]) -> str:
    """Return what a reader must know of every point."""
    counts = []
    for task, n in table.dropna(subset="score").groupby("task", sort=False)["n"]:
        counts.append(f"{' to '.join(map(str, sorted({n.min(), n.max()})))} ({task})")
    marks = [f"{SIGNS[mark]} {name.replace('_', ' ')}." for name, mark in lost(table).items()]
    bands = BANDS if table["scaling"].nunique() <= MOST_BANDS else NO_BANDS
    tail = [TAIL] if "tail" in protocols.values() else []
    return " ".join([f"n per point: {', '.join(counts)}.", bands, *tail, *marks])
