"""Share of keys found by depth and length, a heat map per model and scaling."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from harness.reports._cells import coinciding
from harness.reports._map import draw, shares
from harness.reports._style import SIZE, columns_for, foot, sheet, tidy

NONE = (
    "no passkey samples: the frame has no accuracy with a depth; "
    'add the task "passkey" to the sweep, or give a run that has it'
)
LINE = "Right of the line: past the trained length."
HATCHED = "Hatched: not measured, or failed."


def make(frame: pd.DataFrame) -> Figure:
    """Draw one map per scaling; those with the same frequencies in all cells share a map."""
    samples = coinciding(_passkeys(frame))
    maps = _maps(samples)
    rows = max(len(grid) for _, grid, _ in maps)
    widest = max(grid.shape[1] for _, grid, _ in maps)
    columns = columns_for(len(maps), 1, most=3 if widest <= 7 else 2 if widest <= 12 else 1)
    tall = max(0.9, min(0.2 * rows, 2.4))
    figure, panels = sheet(len(maps), columns, panel_height=tall + 0.75)
    room = (figure.get_size_inches()[0] - 1.2) / columns
    for index, (axes, (title, grid, trained_length)) in enumerate(zip(panels, maps, strict=True)):
        mesh = draw(axes, grid, trained_length, inches=tall / len(grid))
        tidy(axes, title, room=room)
        axes.spines[:].set_visible(False)
        if index % columns == 0:
            axes.set_ylabel("Depth of the key (%)", fontsize=SIZE)
        if index + columns >= len(maps):
            axes.set_xlabel("Context length (tokens)", fontsize=SIZE)
    bar = figure.colorbar(mesh, ax=panels, format=PercentFormatter(1, symbol=""), aspect=30)
    bar.set_label("Keys found (%)", fontsize=SIZE)
    bar.ax.tick_params(labelsize=SIZE - 1, length=2.5, width=0.6)
    bar.outline.set_visible(False)
    foot(figure, [], [], _note(samples, maps))
    return figure


def _passkeys(frame: pd.DataFrame) -> pd.DataFrame:
    """Return all rows of the tasks that hide a key at a depth, unmeasured cells included."""
    deep = frame["depth"].notna() if "depth" in frame else pd.Series(False, index=frame.index)
    tasks = frame["task"][deep & (frame["metric"] == "accuracy")].unique()
    if not len(tasks):
        raise ValueError(NONE)
    return frame[frame["task"].isin(tasks)]


def _maps(samples: pd.DataFrame) -> list[tuple[str, pd.DataFrame, int]]:
    """Return title, grid and trained length per map; a title holds what differs between maps."""
    parts = ["model", "task", "scaling"]
    titled = [part for part in parts if part == "scaling" or samples[part].nunique() > 1]
    maps = []
    for _, rows in samples.groupby(parts, sort=False):
        first = rows.iloc[0]
        kin = samples[(samples["model"] == first["model"]) & (samples["task"] == first["task"])]
        depths, lengths = sorted(kin["depth"].dropna().unique()), sorted(kin["length"].unique())
        title = ", ".join(str(first[part]) for part in titled)
        maps.append((title, shares(rows, depths, lengths), int(first["trained_length"])))
    return maps


def _note(samples: pd.DataFrame, maps: list[tuple[str, pd.DataFrame, int]]) -> str:
    """Return what a reader must know of every cell."""
    known = samples.dropna(subset=["depth", "value"])
    sizes = known.groupby(["model", "task", "scaling", "length", "depth"]).size()
    few, many = sizes.min(), sizes.max()
    keys = f"{few}" if few == many else f"{few} to {many}"
    hatched = [HATCHED] if any(grid.isna().to_numpy().any() for _, grid, _ in maps) else []
    return " ".join([f"Keys per cell: {keys}.", LINE, *hatched])
