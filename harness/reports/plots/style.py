"""How figures look: sizes for paper, styles that survive colour blindness and grey print.

Nothing global is set: sizes are passed to each artist, so a notebook keeps its own settings.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from textwrap import TextWrapper
from typing import TypeVar

import matplotlib.style
import pandas as pd
from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PAGE, COLUMN = 7.0, 3.3  # inches: the text of a two-column paper, and one of its columns
SIZE = 8.0  # points; notes and tick labels one less
GREY = "0.4"
MOST_PANELS = 12  # that can be read on a page
T = TypeVar("T")
MOST_LINES = 12  # of a text that is folded: names come from files and have no end
FRACTIONS = {0.25: "¼", 0.5: "½", 0.75: "¾"}  # of the window, short enough for a tick
# Okabe and Ito, less yellow (too light for a line) and black (which is ``none``), and six more that
# stay as far from each other and from these under deuteranopia and protanopia.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#772200", "#6677FF", "#663355", "#EE1155", "#3322AA", "#0000FF",
)  # fmt: skip
MARKERS = ("s", "^", "D", "v", "P", "<", "X", ">", "p", "d", "h", "*")
# These methods have the look of their place in every run; others take what a run leaves free.
USUAL = (
    "yarn", "pi", "ntk_by_parts", "ntk", "self_extend", "dual_chunk", "rerope", "lm_infinite",
    "dynamic_ntk", "string", "native", "longrope",
)  # fmt: skip
LOOKS = len(COLOURS)  # that can be distinguished
FIXED = (0, (5, 1.5))  # dashes of a fixed factor
# It tells each table of a font that a PDF embeds, wherever a library shows messages of that level.
logging.getLogger("fontTools").setLevel(logging.WARNING)


@dataclass(frozen=True)
class Paper:
    """What figures are drawn for: their width in inches, and a style of Matplotlib or its file."""

    width: float = PAGE
    style: str | Path | None = None

    def across(self, panels: int) -> int:
        """Return how many of so many panels of a page are side by side at this width."""
        return max(1, min(panels, math.floor(panels * self.width / PAGE)))

    def tall(self, inches: float) -> float:
        """Return the height of a panel: in a column lower, as it is less wide."""
        return inches if self.width >= PAGE else 0.75 * inches


_PAPER: ContextVar[Paper | None] = ContextVar("_PAPER", default=None)


def paper() -> Paper:
    """Return what is drawn for: set by ``drawing``, by default a page."""
    return _PAPER.get() or Paper()


@contextmanager
def drawing(requested: Paper | None = None) -> Iterator[None]:
    """Draw and save under settings of our own, whatever a matplotlibrc says: same data, same bytes.

    A $ in a name is a $, and no formula. SVG text becomes paths, for a viewer without the font
    would set it in another width than was measured here; PDF embeds the font and keeps its text.
    The paper that is ``requested`` for has a say in fonts and lines, not in sizes.
    """
    before = _PAPER.set(requested)
    try:
        with rc_context():
            rcdefaults()
            if requested and requested.style:
                matplotlib.style.use(requested.style)
            rcParams["figure.autolayout"] = rcParams["figure.constrained_layout.use"] = False
            rcParams["text.parse_math"] = rcParams["text.usetex"] = False
            rcParams["svg.fonttype"] = "path"
            rcParams["svg.hashsalt"] = "ropewalk"
            rcParams["pdf.fonttype"] = 42
            yield
    finally:
        _PAPER.reset(before)


@dataclass(frozen=True)
class Look:
    """How one scaling is drawn, in every panel."""

    color: str
    marker: str
    linestyle: str | tuple[float, tuple[float, ...]] = "-"
    width: float = 1.2


REST = Look("0.72", "", width=0.7)  # one of many without a look of their own


def looks(
    names: Sequence[str],
    *,
    distinct: Collection[str],
    plain: Collection[str] = (),
    fixed: Collection[str] = (),
) -> dict[str, Look]:
    """Give every name that is ``distinct`` its colour and marker; the others are grey.

    ``plain`` is the black baseline. Dashes are those of ``fixed`` factors.
    """
    own = [name for name in names if name in distinct and name not in plain]
    usual: dict[str, str] = {}  # yarn:factor=4 looks like yarn in a run without yarn
    for name in own:
        first = name.partition(":")[0]
        if first in USUAL and (first == name or first not in own):
            usual.setdefault(first, name)
    place = {name: USUAL.index(first) for first, name in usual.items()}
    free = [index for index in range(LOOKS) if index not in place.values()]
    others = (name for name in own if name not in place)
    place |= dict(zip(others, chain(free, cycle(range(LOOKS))), strict=False))
    return {
        name: Look("black", "o", "--")
        if name in plain
        else Look(COLOURS[place[name]], MARKERS[place[name]], FIXED if name in fixed else "-")
        if name in place
        else REST
        for name in names
    }


def sheet(panels: int, columns: int, *, panel_height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with a grid of panels, each ``panel_height`` inches tall."""
    rows, room = math.ceil(panels / columns), paper().width
    width = room if columns > 1 or room < PAGE else 0.65 * PAGE
    figure = Figure(figsize=(width, rows * panel_height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[panels:]:
        spare.remove()
    return figure, axes[:panels]


def shown_part(groups: Sequence[T], what: str, most: int = MOST_PANELS) -> tuple[list[T], str]:
    """Return as many as one figure can show, and in a sentence what it leaves out."""
    left = len(groups) - most
    text = f" {left} of {len(groups)} {what} are left out here; scores has all." if left > 0 else ""
    return list(groups[:most]), text


def lay_out(figure: Figure) -> None:
    """Place everything in a figure once, for all formats that it is saved in."""
    if layout := figure.get_layout_engine():
        layout.execute(figure)
    figure.set_layout_engine(None)  # with one, even "none", each format is drawn twice


def tidy(axes: Axes, title: str, *, room: float, above: float = 4) -> None:
    """Strip a panel to what is read; title it in ``room`` inches, ``above`` points over it."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SIZE - 1, length=2.5, width=0.6)
    axes.set_title(folded(title, room), fontsize=SIZE, loc="left", pad=above)


class _Folds(TextWrapper):
    """Breaks specs where their options begin, not inside of a name."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=[:,+])(?!\d))")


def folded(text: str, room: float, size: float = SIZE) -> str:
    """Break a text into lines of at most ``room`` inches, at ``size`` points."""
    return "\n".join(wrapped(text, max(12, int(room / letter(size)))))


def wrapped(text: str, letters: int) -> list[str]:
    """Break a text into lines of so many letters; what is longer than any name is cut off."""
    folds = _Folds(letters, break_on_hyphens=False, max_lines=MOST_LINES, placeholder=" …")
    return folds.wrap(text)


def spaced(labels: Sequence[str], places: Sequence[float]) -> list[str]:
    """Blank the tick labels that would touch another; ``places`` are in inches.

    First and last are set before the others: they show how far a figure goes.
    """
    kept: set[int] = set()
    widths = [max(map(len, lines.split("\n"))) for lines in labels]
    halves = [(0.32 * width + 0.15) * (SIZE - 1) / 72 for width in widths]
    for index in (0, len(labels) - 1, *range(1, len(labels) - 1)):
        gaps = [abs(places[index] - places[other]) - halves[other] for other in kept]
        if index in kept or all(gap >= halves[index] for gap in gaps):
            kept.add(index)
    return [label if index in kept else "" for index, label in enumerate(labels)]


def letter(size: float) -> float:
    """Return the mean width of a letter in inches: 0.58 em in DejaVu Sans."""
    return 0.58 * size / 72


def length_label(length: int) -> str:
    """Return "512", "1k", "1.5k"; k is 1024 tokens."""
    thousands = length / 1024
    exact = thousands >= 1 and (thousands * 2).is_integer()
    return f"{thousands:g}k" if exact else str(length)


def tick_label(length: int, trained_length: int) -> str:
    """Return a length over what it is of the window, as in "512" over "2×" or "64" over "¼×"."""
    ratio = length / trained_length
    return f"{length_label(length)}\n{FRACTIONS.get(ratio) or f'{ratio:.3g}'}×"


def columns_for(panels: int, kinds: int, *, most: int = 3) -> int:
    """Return how many panels are side by side: one per kind where that fits, else a square."""
    if 1 < kinds <= most:
        return paper().across(kinds)
    return paper().across(min(most, 2 if panels == 4 else panels))


def trace(
    axes: Axes, points: pd.DataFrame, name: str, look: Mapping[str, Look], index: int, marks: int
) -> None:
    """Draw a line of many points, x and y, with about so many marks, each line's elsewhere."""
    style, every = look[name], max(1, len(points) // marks)
    x, y = (points.iloc[:, column] for column in (0, 1))
    axes.plot(
        x, y, label=name, color=style.color, linestyle=style.linestyle,
        linewidth=style.width - 0.1, marker=style.marker, markersize=3.6, zorder=1.5 + style.width,
        markeredgecolor="white", markeredgewidth=0.5,
        markevery=(index * every // len(look), every),
    )  # fmt: skip
