"""How figures look: sizes for paper, and one colour and marker per method in all figures of a run.

Colours and markers survive colour blindness and grey print. Sizes are those of a paper's page.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib.style
import pandas as pd
from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from ropewalk.harness.stats.measure import LOWER

PAGE, COLUMN = 7.0, 3.3  # inches: the text of a two-column paper, and one of its columns
SIZE = 8.0  # points; tick labels and notes one less
LETTER = 0.58 * SIZE / 72  # inches: the mean width of a letter in DejaVu Sans
GREY = "0.4"
MOST_TICKS = 6  # lengths that are named on the axis of a panel
# Okabe and Ito, less yellow (too light for a line) and black (which is ``none``), and six more that
# stay as far from each other and from these under deuteranopia and protanopia.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#772200", "#6677FF", "#663355", "#EE1155", "#3322AA", "#0000FF",
)  # fmt: skip
MARKERS = ("s", "^", "D", "v", "P", "<", "X", ">", "p", "d", "h", "*")
# These methods have the same look in every run; others take what a run leaves free.
USUAL = (
    "yarn", "pi", "ntk_by_parts", "ntk", "self_extend", "dual_chunk", "rerope", "lm_infinite",
    "dynamic_ntk", "string", "native", "longrope",
)  # fmt: skip
FEW = 8  # of more methods than colours these many, the best, are coloured
LONGEST = 40  # letters in a line of a legend
PARTS = ["model", "task", "scaling", "length", "frequencies", "metric", "score"]
RULE = " In colour: the {} methods of the best mean rank at the longest length; grey: the other {}."
SETTINGS: dict[str, Any] = {
    "font.size": SIZE, "axes.titlesize": SIZE, "axes.labelsize": SIZE, "legend.fontsize": SIZE,
    "figure.titlesize": SIZE + 1, "xtick.labelsize": SIZE - 1, "ytick.labelsize": SIZE - 1,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "axes.titlelocation": "left", "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False, "legend.handlelength": 3.2,
    "lines.linewidth": 1.2, "figure.dpi": 200, "figure.constrained_layout.use": True,
    "figure.autolayout": False,
    # A $ in a name is a $. SVG text becomes paths, for a viewer without the font would set it in
    # another width than was measured here; PDF embeds the font and keeps its text.
    "text.parse_math": False, "text.usetex": False, "svg.fonttype": "path",
    "svg.hashsalt": "ropewalk", "pdf.fonttype": 42,
}  # fmt: skip
logging.getLogger("fontTools").setLevel(logging.WARNING)  # it logs each table of a PDF's font


@dataclass(frozen=True)
class Paper:
    """What figures are drawn for: their width in inches, and a style of Matplotlib or its file."""

    width: float = PAGE
    style: str | Path | None = None


@contextmanager
def drawing(paper: Paper | None = None) -> Iterator[None]:
    """Draw and save under settings of our own, whatever a matplotlibrc says: same data, same bytes.

    ``@drawing()`` lets a function draw so, in a notebook too. The style of the paper has a say in
    fonts and lines, not in sizes. Without a paper an outer ``drawing`` stays in force.
    """
    if paper is None and rcParams["svg.hashsalt"] == SETTINGS["svg.hashsalt"]:
        yield
        return
    paper = paper or Paper()
    with rc_context():
        rcdefaults()
        if paper.style:
            matplotlib.style.use(paper.style)
        settings: Any = {**SETTINGS, "figure.figsize": (paper.width, paper.width)}
        rcParams.update(settings)
        yield


def sheet(panels: int, height: float, most: int = 3) -> tuple[Figure, list[Axes], int]:
    """Return a figure with a grid of panels so many inches high, and the letters of a panel's line.

    At most so many panels are side by side, in a column of a paper one.
    """
    width = float(rcParams["figure.figsize"][0])
    columns = 1 if width < PAGE else min(most, 2 if panels == 4 else panels)
    rows = math.ceil(panels / columns)
    if columns == 1 and width == PAGE:
        width = 0.65 * PAGE
    figure = Figure(figsize=(width, rows * height))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[panels:]:
        spare.remove()
    return figure, axes[:panels], int((width / columns - 0.65) / LETTER)


def span(numbers: Iterable[int]) -> str:
    """Return "20", or "18 to 20" for the least and the most of several."""
    known = {*numbers}
    return " to ".join(map(str, sorted({min(known), max(known)})))


def length_label(length: int) -> str:
    """Return "512", "1k", "1.5k"; k is 1024 tokens."""
    thousands = length / 1024
    exact = thousands >= 1 and (thousands * 2).is_integer()
    return f"{thousands:g}k" if exact else str(length)


def tick_label(length: int, trained_length: int) -> str:
    """Return a length over what it is of the window, as in "512" over "2×"."""
    return f"{length_label(length)}\n{length / trained_length:.3g}×"


def length_axis(axes: Axes, first: float, last: float, trained_length: int) -> None:
    """Make an axis of lengths or positions, logarithmic, with those of pretraining shaded."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(first, last)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: length_label(round(x))))
    axes.axvspan(first, min(trained_length, last), color="0.94", linewidth=0, zorder=0)
    axes.axvline(
        trained_length, color=GREY, linewidth=0.8, linestyle=":", zorder=1, label="trained window"
    )


@dataclass(frozen=True)
class Look:
    """How one method is drawn, in every panel."""

    color: str
    marker: str
    linestyle: str = "-"
    width: float = 1.2


PLAIN = Look("black", "o", "--")  # the unscaled model
REST = Look("0.72", "", width=0.7)  # one of many methods without a colour


@dataclass(frozen=True)
class Methods:
    """How the methods of a run are drawn.

    ``names`` has the name in figures of every scaling that is drawn: scalings that coincide in all
    cells share one. ``look`` is by that name, and ``best`` has the names from the best to the
    worst.
    """

    names: Mapping[str, str]
    look: Mapping[str, Look]
    best: Sequence[str]

    def drawn(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the methods that are drawn, under their names in figures."""
        kept = table[table["scaling"].isin(list(self.names))]
        return kept.assign(scaling=kept["scaling"].map(self.names))

    def plot(self, axes: Axes, x: pd.Series[float], y: pd.Series[float], name: str) -> None:
        """Draw a line of many points with about eight marks."""
        look = self.look[name]
        axes.plot(
            x, y, label=name, color=look.color, linestyle=look.linestyle, linewidth=look.width,
            marker=look.marker, markersize=3.6, markeredgecolor="white", markeredgewidth=0.5,
            markevery=max(1, len(x) // 8), zorder=1.5 + look.width,
        )  # fmt: skip

    def finish(self, figure: Figure, caption: str) -> None:
        """Caption a figure, and make it higher by a legend under the panels, the methods first.

        The caption is the figure's label, which is written beside it and not into it.
        """
        lines: dict[str, Any] = {}
        for axes in figure.axes:
            handles, names = axes.get_legend_handles_labels()
            lines |= dict(zip(names, handles, strict=True))
        shown = [name for name in self.look if name in lines]
        drawn = {fill(name, LONGEST): lines[name] for name in shown if self.look[name] != REST}
        if others := len(shown) - len(drawn):
            coloured = sum(self.look[name] not in (PLAIN, REST) for name in shown)
            caption += RULE.format(coloured, others)
            drawn[f"{others} others"] = Line2D([], [], color=REST.color, linewidth=REST.width)
        drawn |= {name: line for name, line in lines.items() if name not in self.look}
        figure.set_label(caption)
        width, height = figure.get_size_inches()
        longest = max(len(line) for name in drawn for line in name.split("\n"))
        columns = max(1, int(width / (longest * LETTER + 0.6)))
        figure.set_size_inches(width, height + 0.17 * math.ceil(len(drawn) / columns) + 0.1)
        figure.legend(drawn.values(), drawn, loc="outside lower center", ncols=columns)


def methods(frame: pd.DataFrame) -> Methods:
    """Give every method of a run its name and look; the frame is that of all the run's samples."""
    known = frame[frame.columns.intersection(PARTS)].drop_duplicates(ignore_index=True)
    names = _names(known)
    best = [scaling for scaling in _ranked(known) if scaling in names]
    own = [scaling for scaling in best if "none" not in names[scaling].split(" = ")]
    best_few = own if len(own) <= len(COLOURS) else own[:FEW]
    coloured = [scaling for scaling in names if scaling in best_few]
    slots: dict[str, int] = {}
    for scaling in sorted(coloured, key=lambda scaling: ":" in scaling):
        usual = scaling.partition(":")[0]
        if usual in USUAL and USUAL.index(usual) not in slots.values():
            slots[scaling] = USUAL.index(usual)
    for scaling in (scaling for scaling in coloured if scaling not in slots):
        slots[scaling] = min(set(range(len(COLOURS))) - set(slots.values()))
    look = {
        name: PLAIN if scaling not in own
        else Look(COLOURS[slots[scaling]], MARKERS[slots[scaling]]) if scaling in slots
        else REST
        for scaling, name in names.items()
    }  # fmt: skip
    return Methods(names, look, [names[scaling] for scaling in best])


def _names(known: pd.DataFrame) -> dict[str, str]:
    """Return one of the scalings that have the same frequencies in all cells, named for all.

    ``ntk`` and ``dynamic_ntk`` become ``ntk = dynamic_ntk``. The score is compared too: equal
    frequencies of which only one was measured stay separate. Channels have no score.
    """
    cells = known[known.columns.intersection(["model", "task", "length", "score"])].astype(str)
    cells["frequencies"] = known["frequencies"].fillna(known["scaling"])
    signs: dict[str, set[Any]] = {}
    for scaling, *sign in zip(known["scaling"], *(cells[name] for name in cells), strict=True):
        signs.setdefault(scaling, set()).add(tuple(sign))
    alike: dict[Any, list[str]] = {}
    for scaling, every in signs.items():
        alike.setdefault(frozenset(every), []).append(scaling)
    return {names[0]: " = ".join(names) for names in alike.values()}


def _ranked(known: pd.DataFrame) -> list[str]:
    """Return the scalings from best to worst by their mean place at each task's longest length."""
    order = list(known["scaling"].unique())
    if "score" not in known:  # channels
        return order
    grouped = known.groupby(["model", "task", "length", "scaling", "metric"], sort=False)
    table = grouped["score"].max().reset_index()
    longest = table.groupby(["model", "task"])["length"].transform("max")
    far = table[table["length"] == longest]
    cost = far["score"].where(far["metric"].isin(LOWER), -far["score"])
    place = cost.groupby([far["model"], far["task"]]).rank(na_option="bottom")
    mean = place.groupby(far["scaling"]).mean().reindex(order)
    return [str(name) for name in mean.sort_values(kind="stable").index]
