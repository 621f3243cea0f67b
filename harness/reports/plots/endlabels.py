"""Names at the ends of lines; lines that end within a hair of each other are one bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from harness.reports.plots.style import GREY, SIZE

LINE = 0.122  # inches of a line of text
HAIR = 0.025  # of the height of a panel: lines that end nearer are a bundle


@dataclass(frozen=True)
class End:
    """Where a line ends: ``place`` is its height in the panel, 0 to 1.

    ``low`` and ``high`` are its value, of several seeds the least and the largest; ``early`` says
    that it ends before the others.
    """

    name: str
    x: float
    place: float
    color: str
    low: float
    high: float
    early: bool = False


def bundles(ends: Sequence[End]) -> list[list[End]]:
    """Return the ends from the lowest, those within a hair of each other together."""
    groups: list[list[End]] = []
    for end in sorted(ends, key=lambda end: end.place):
        if groups and end.place - groups[-1][-1].place < HAIR:
            groups[-1].append(end)
        else:
            groups.append([end])
    return groups


def _lines(bundle: Sequence[End]) -> int:
    return len(bundle) + (len(bundle) > 1)


def label_ends(axes: Axes, ends: Sequence[End], tall: float, written: str) -> None:
    """Name every line at its end in a panel ``tall`` inches high; a bundle has its range.

    ``written`` is how a value is printed: ``"{:.1f}"``.
    """
    groups = bundles(ends)
    line = LINE / tall
    places = [sum(end.place for end in group) / len(group) for group in groups]
    halves = [line * _lines(group) / 2 for group in groups]
    centers = spread(places, halves)
    for group, center, half in zip(groups, centers, halves, strict=True):
        low, high = min(end.low for end in group), max(end.high for end in group)
        first, last = written.format(low), written.format(high)
        values = first if first == last else f"{first} to {last}"
        if len(group) == 1:
            texts = [(f"{group[0].name}  {values}", group[0].color)]
        else:
            texts = [*((end.name, end.color) for end in reversed(group)), (values, GREY)]
        for end in group:
            if end.early:
                continue
            axes.annotate(
                "", (end.x, end.place), (1.05, center), xycoords=("data", "axes fraction"),
                textcoords="axes fraction", annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": "0.75", "linewidth": 0.5, "shrinkA": 0,
                            "shrinkB": 3},
            )  # fmt: skip
        if len(group) > 1:
            ends_of = [center - half + line * 0.15, center + half - line * 0.15]
            axes.plot([1.06, 1.06], ends_of, color="0.6", linewidth=0.8, clip_on=False,
                      transform=axes.transAxes, label="_bundle")  # fmt: skip
        for row, (text, color) in enumerate(texts):
            axes.text(
                1.08, center + half - line * (row + 0.5), text, transform=axes.transAxes,
                fontsize=SIZE - 1, color=color, va="center",
            )  # fmt: skip


def spread(places: Sequence[float], halves: Sequence[float]) -> list[float]:
    """Return centers near these rising places at which labels of these half heights do not touch.

    They stay inside the panel where it is high enough, else they hang out below.
    """
    centers, floor = [], -0.03
    for place, half in zip(places, halves, strict=True):
        centers.append(max(place, floor + half))
        floor = centers[-1] + half
    ceiling = max(1.02, places[-1]) if places else 1.02
    for index, half in reversed(list(enumerate(halves))):
        centers[index] = min(centers[index], ceiling - half)
        ceiling = centers[index] - half
    return centers
