"""Share found by depth and length, a heat map per model and scaling: of any task with a depth."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from harness.reports.plots.heat_map import Map, draw, grid
from harness.reports.plots.methods import methods
from harness.reports.plots.style import SIZE, columns_for, foot, readable_part, sheet, tidy
from harness.reports.retrieval_table import hidden
from harness.stats.cells import CELL

NONE = (
    "no samples with a depth: the frame has no retrieval of what is hidden at one; "
    'add the task "passkey" or "niah" to the sweep, or give a run that has it'
)
MOST_MAPS = 12  # of a model and task
LINE = "Right of the line: past the trained length."
HATCHED = "Hatched: not measured, or failed."


def make(frame: pd.DataFrame) -> Figure:
    """Draw one map per scaling; those with the same frequencies in all cells share a map."""
    known = methods(frame)
    samples = known.drawn(_hidden(frame))
    names = list(samples["scaling"].unique())
    kept = known.first(names, MOST_MAPS)
    samples = samples[samples["scaling"].isin(kept)]
    maps, left_out = readable_part(_maps(samples), "maps", 2 * MOST_MAPS)
    if len(kept) < len(names):
        left_out += f" The best {len(kept)} of {len(names)} methods at the longest length are here."
    widest = max(len(shown.lengths) for shown in maps)
    columns = columns_for(len(maps), 1, most=3 if widest <= 7 else 2 if widest <= 10 else 1)
    columns = max(columns, min(len(maps), 2)) if widest <= 4 else columns
    tall = max(0.9, min(0.2 * max(len(shown.depths) for shown in maps), 2.4))
    figure, panels = sheet(len(maps), columns, panel_height=tall + 0.75)
    room = (figure.get_size_inches()[0] - 0.9) / columns - 0.35
    rows = math.ceil(len(maps) / columns)
    for index, (axes, shown) in enumerate(zip(panels, maps, strict=True)):
        mesh = draw(axes, shown, room=room, tall=tall)
        tidy(axes, shown.title, room=room)
        axes.spines[:].set_visible(False)
        if index % columns == 0:
            axes.set_ylabel("Depth (%)", fontsize=SIZE)
        if index // columns == rows - 1:
            axes.set_xlabel("Context length (tokens)" if room > 1.5 else "Length", fontsize=SIZE)
    percent = PercentFormatter(1, symbol="")
    bar = figure.colorbar(mesh, ax=panels, format=percent, aspect=12 * rows, pad=0.02)
    bar.set_label("Found (%)", fontsize=SIZE)
    bar.ax.tick_params(labelsize=SIZE - 1, length=2.5, width=0.6)
    bar.outline.set_visible(False)
    foot(figure, [], [], _note(samples, maps) + left_out)
    return figure


def _hidden(frame: pd.DataFrame) -> pd.DataFrame:
    """Return all rows of the tasks that hide something at a depth, unmeasured cells included."""
    tasks = hidden(frame)["task"].unique()
    if not len(tasks):
        raise ValueError(NONE)
    columns = [*CELL, "trained_length", "depth", "value", "found"]
    return frame[frame["task"].isin(tasks)].reindex(columns=columns)


def _maps(samples: pd.DataFrame) -> list[Map]:
    """Return a map per model, task and scaling; its title holds what differs between maps."""
    parts = ["model", "task", "scaling"]
    titled = [part for part in parts if part == "scaling" or samples[part].nunique() > 1]
    maps = []
    for _, kin in samples.groupby(["model", "task"], sort=False):
        depths, lengths = sorted(kin["depth"].dropna().unique()), sorted(kin["length"].unique())
        for _, rows in kin.groupby("scaling", sort=False):
            title = ", ".join(str(rows[part].iloc[0]) for part in titled)
            maps.append(grid(title, rows, depths, lengths))
    return maps


def _note(samples: pd.DataFrame, maps: list[Map]) -> str:
    """Return what a reader must know of every cell."""
    known = samples.dropna(subset=["depth", "value"])
    sizes = known.groupby(["model", "task", "scaling", "length", "depth"]).size()
    keys = " to ".join(map(str, sorted({sizes.min(), sizes.max()})))
    hatched = [HATCHED] if any(np.isnan(shown.shares).any() for shown in maps) else []
    alike = [samples[part].iloc[0] for part in ("model", "task") if samples[part].nunique() == 1]
    of = [f"{', '.join(alike)}."] if alike else []
    # Of a text the right number counts wherever it stands, and its format too.
    other = ((known["found"] == "format") & (known["value"] == 0)).mean()
    lost = [f"{other:.0%} of the answers have the number in another format: not counted."]
    return " ".join([*of, f"Trials per cell: {keys}.", *(lost if other else []), LINE, *hatched])
