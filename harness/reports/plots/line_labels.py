"""Names at the ends of lines, where lines are few: no eye has to travel to a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from harness.reports.plots.paper import paper
from harness.reports.plots.style import SIZE, Look

MOST_LINES, LONGEST = 6, 14  # lines, and letters of a name, for which there is room beside a panel
LINE = 1.2 * (SIZE - 1) / 72  # inches from one name to the next


def fit(names: Sequence[str]) -> bool:
    """Return whether names fit at the lines' ends in place of a legend."""
    return 1 < len(names) <= MOST_LINES and max(map(len, names)) <= LONGEST


def label_ends(axes: Axes, look: Mapping[str, Look], *, tall: float) -> None:
    """Name every line right of its last point, apart from each other, in ``tall`` inches.

    The axes' limits and scales must be set.
    """
    places = {}
    for line in axes.get_lines():
        name = str(line.get_label())
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        known = np.flatnonzero(np.isfinite(y))
        if name in look and len(known):
            point = axes.transScale.transform((x[known[-1]], y[known[-1]]))
            places[name] = float(axes.transLimits.transform(point)[1])
    for name, height in spread(places, LINE / paper().tall(tall)).items():
        axes.annotate(
            name, (1, height), (5, 0), xycoords="axes fraction", textcoords="offset points",
            va="center", fontsize=SIZE - 1, color=look[name].color, annotation_clip=False,
        )  # fmt: skip


def spread(places: Mapping[str, float], gap: float) -> dict[str, float]:
    """Move heights the least that brings them ``gap`` apart, in their order, within 0 to 1."""
    names = sorted(places, key=lambda name: places[name])
    steps = gap * np.arange(len(names))
    # Heights less their steps must not fall: the closest such sequence (pool adjacent violators).
    pools: list[list[float]] = []
    for value in np.array([places[name] for name in names]) - steps:
        pools.append([float(value)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    most = max(0.0, 1 - gap * (len(names) - 1))  # so that the last stays in the panel
    heights = [min(max(float(np.mean(pool)), 0.0), most) for pool in pools for _ in pool]
    return {name: height + step for name, height, step in zip(names, heights, steps, strict=True)}
