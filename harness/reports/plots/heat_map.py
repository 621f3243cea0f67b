"""One heat map: share of keys found by depth (down) and length (across)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from harness.reports.plots.style import SIZE, spaced, tick_label

COLOURS = "viridis"  # rises evenly in lightness, so it holds in grey and to colour-blind eyes
MOST_NAMED = 11  # depths that get a label


@dataclass(frozen=True)
class Map:
    """What one heat map shows; ``shares`` has a row a depth, a column a length, NaN if unknown."""

    title: str
    depths: list[float]
    lengths: list[int]
    trained_length: int
    shares: NDArray[np.float64]


def grid(title: str, samples: pd.DataFrame, depths: list[float], lengths: list[int]) -> Map:
    """Take the share of keys found at every depth and length."""
    known = samples.dropna(subset=["depth", "value"])
    table = known.pivot_table(index="depth", columns="length", values="value", aggfunc="mean")
    shares = table.reindex(index=depths, columns=lengths).to_numpy(dtype=np.float64)
    return Map(title, depths, lengths, int(samples["trained_length"].iloc[0]), shares)


def draw(axes: Axes, shown: Map, *, room: float, tall: float) -> QuadMesh:
    """Draw one map of ``room`` x ``tall`` inches, with numbers where they can be read."""
    rows, columns = shown.shares.shape
    axes.add_patch(
        Rectangle((-0.5, -0.5), columns, rows, facecolor="0.93", edgecolor="0.6", hatch="/////",
                  linewidth=0, zorder=0)
    )  # fmt: skip
    mesh = axes.pcolormesh(
        np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, shown.shares, cmap=COLOURS,
        vmin=0, vmax=1, edgecolors="white", linewidth=0.5,
    )  # fmt: skip
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)  # depth 0, the start of the text, is on top
    if tall / rows >= 0.12 and room / columns >= 0.2:
        _numbers(axes, shown.shares, mesh)
    labels = [tick_label(length, shown.trained_length) for length in shown.lengths]
    places = [room / columns * index for index in range(columns)]
    axes.set_xticks(range(columns), spaced(labels, places))
    named = range(0, rows, math.ceil(rows / MOST_NAMED))
    axes.set_yticks(named, [f"{100 * shown.depths[row]:.0f}" for row in named])
    end = sum(length <= shown.trained_length for length in shown.lengths) - 0.5
    for color, width in (("white", 3.2), ("black", 1.4)):
        axes.plot(
            [end, end], [-0.06, 1], transform=axes.get_xaxis_transform(), color=color,
            linewidth=width, clip_on=False, solid_capstyle="butt", label="_trained",
        )  # fmt: skip
    return mesh


def _numbers(axes: Axes, shares: NDArray[np.float64], mesh: QuadMesh) -> None:
    """Write percent into the cells, in black or white, whichever has more contrast."""
    for (row, column), share in np.ndenumerate(shares):
        if np.isnan(share):
            continue
        red, green, blue, _ = mesh.cmap(share)
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
        axes.text(
            column, row, f"{100 * share:.0f}", color="white" if dark else "black",
            fontsize=SIZE - 1.5, ha="center", va="center_baseline",
        )  # fmt: skip
