"""One heat map: share of keys found by depth (down) and length (across)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.patches import Rectangle

from harness.reports._style import SIZE, length_label, stretch_label

COLOURS = "cividis"  # rises evenly in lightness: the same map to colour-blind eyes and in grey
MOST_TICKS = 11  # depths that get a label


def shares(samples: pd.DataFrame, depths: Sequence[float], lengths: Sequence[int]) -> pd.DataFrame:
    """Return the share of keys found, a row a depth, a column a length; NaN where none is known."""
    known = samples.dropna(subset=["depth", "value"])
    grid = known.pivot_table(index="depth", columns="length", values="value", aggfunc="mean")
    return grid.reindex(index=list(depths), columns=list(lengths)).astype(float)


def draw(axes: Axes, grid: pd.DataFrame, trained_length: int, *, inches: float) -> QuadMesh:
    """Draw the grid with a number in every cell of at least ``inches`` height to write in."""
    rows, columns = grid.shape
    axes.add_patch(
        Rectangle((-0.5, -0.5), columns, rows, facecolor="0.93", edgecolor="0.6", hatch="/////",
                  linewidth=0, zorder=0)
    )  # fmt: skip
    mesh = axes.pcolormesh(
        np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, grid.to_numpy(), cmap=COLOURS,
        vmin=0, vmax=1, edgecolors="white", linewidth=0.5,
    )  # fmt: skip
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)  # depth 0, the start of the text, is on top
    if inches >= 0.12:
        _numbers(axes, grid, mesh)
    _ticks(axes, grid, trained_length)
    end = sum(length <= trained_length for length in grid.columns) - 0.5
    for color, width in (("white", 3.2), ("black", 1.4)):
        axes.plot([end, end], [-0.04, 1.04], transform=axes.get_xaxis_transform(), color=color,
                  linewidth=width, clip_on=False, solid_capstyle="butt", label="_trained")  # fmt: skip
    return mesh


def _numbers(axes: Axes, grid: pd.DataFrame, mesh: QuadMesh) -> None:
    """Write percent into the cells, in the one of black and white that stands out more."""
    for (row, column), share in np.ndenumerate(grid.to_numpy()):
        if np.isnan(share):
            continue
        red, green, blue, _ = mesh.cmap(share)
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
        axes.text(
            column, row, f"{100 * share:.0f}", color="white" if dark else "black",
            fontsize=SIZE - 1.5, ha="center", va="center_baseline",
        )  # fmt: skip


def _ticks(axes: Axes, grid: pd.DataFrame, trained_length: int) -> None:
    """Label columns with length and stretch, rows with depth in percent."""
    labels = [
        f"{length_label(length)}\n{stretch_label(length, trained_length)}"
        for length in grid.columns
    ]
    axes.set_xticks(range(len(labels)), labels)
    places = range(0, len(grid), math.ceil(len(grid) / MOST_TICKS))
    axes.set_yticks(places, [f"{100 * grid.index[place]:.0f}" for place in places])
