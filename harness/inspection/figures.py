"""Draw what methods do to channels: frequency ratios, wavelengths, the decay bound, scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.inspection.scores import MORE
from harness.reports.plots import style
from harness.reports.plots.methods import methods
from harness.reports.plots.panel import by_length, where_changed
from harness.reports.writing.sentences import counted

UNSEEN = "unseen angles"
SHADE = "0.9"
LOWEST, HIGHEST = 2.0**-10, 2.0**10  # a ratio outside is drawn at the edge
CHANNEL_NOTE = (
    "Channel pairs from fastest (left) to slowest (right), by their turns without scaling. Right "
    "of the dotted line they made less than one turn in training; where shaded, their angles at "
    "this length exceed all those of training."
)
STILL = " Triangles on the axis: not rotated."


def draw_channels(frame: pd.DataFrame) -> Figure:
    """Draw one panel per length in which a method changes anything (all, where none does)."""
    known = methods(frame)
    table = known.drawn(frame)
    table = where_changed(table, table["change"] != "unchanged")
    look = known.look
    moving = table.loc[table["ratio"] > 0, "ratio"]  # the range is shared by all panels
    low = max(LOWEST, min(moving.min(), (1 / table["stretch"]).min()))
    high = min(HIGHEST, max(1.0, moving.max()))
    pad = (high / low) ** 0.06 if high > low else 1.1
    figure, panels = by_length(
        table, lambda axes, rows: _channel_panel(axes, rows, look, low / pad, high * pad)
    )
    note = CHANNEL_NOTE + (STILL if (table["ratio"] == 0).any() else "")
    known.finish(figure, panels, note, more={UNSEEN: Patch(color=SHADE)})
    return figure


def _channel_panel(
    axes: Axes, rows: pd.DataFrame, look: Mapping[str, style.Look], low: float, high: float
) -> None:
    """Draw the ratios at one length over the turns that each pair made in training."""
    turns = rows["turns"]
    axes.set_xscale("log")
    axes.set_xlim(turns.max() * 1.25, turns.min() / 1.25)  # fastest first
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    if turns.min() < 1:
        first = rows.iloc[0]
        seen = min(high, first["trained_length"] / first["length"])
        axes.fill_between([1, turns.min() / 1.25], seen, high, color=SHADE, lw=0, zorder=0)
        axes.axvline(1, color=style.GREY, linewidth=0.8, linestyle=":", zorder=1)
    for index, (scaling, pairs) in enumerate(rows.groupby("scaling", sort=False)):
        _channel_line(axes, pairs, str(scaling), look[str(scaling)], index, len(look))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: str(Fraction(value).limit_denominator(2**12)))
    )
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("Turns in the trained window", fontsize=style.SIZE)
    axes.set_ylabel("Ratio to unscaled frequency", fontsize=style.SIZE)


def _channel_line(
    axes: Axes, pairs: pd.DataFrame, label: str, look: style.Look, index: int, count: int
) -> None:
    """Draw one method; later ones are narrower, so that several in one place are seen."""
    ratio = pairs["ratio"].to_numpy()
    every = max(1, len(ratio) // 12)
    axes.plot(
        pairs["turns"], np.where(ratio > 0, ratio.clip(LOWEST, HIGHEST), np.nan), label=label,
        color=look.color, linestyle=look.linestyle,
        linewidth=look.width * (1.15 - 0.5 * index / count),
        marker=look.marker, markersize=4.4 - 1.2 * index / count, markeredgecolor="white",
        markeredgewidth=0.5, zorder=1.5 + look.width,
        markevery=(index * every // count, every),
    )  # fmt: skip
    still = pairs.loc[pairs["ratio"] == 0, "turns"]
    if still.empty:
        return  # an unclipped line without points would break the layout
    axes.plot(
        still, np.full(len(still), axes.get_ylim()[0]), label="_rest", color=look.color, marker="v",
        markersize=5 - 2.5 * index / count, linestyle="", clip_on=False,
    )  # fmt: skip


UNSCALED = "unscaled"
DECAY_NOTE = (
    "Upper bound of the attention score, attention factor included: mean of |Sⱼ| over the channel "
    "pairs j (RoFormer, arXiv:2104.09864, section 3.4.3), averaged over a third of an octave of "
    "distances. Grey: the trained window."
)


def draw_decay(frame: pd.DataFrame) -> Figure:
    """Draw one panel per length in which a method changes anything (all, where none does)."""
    known = methods(frame)
    table = known.drawn(frame[frame["distance"] > 0])  # the axis is logarithmic
    table = where_changed(table, table["bound"] != table["bound_unscaled"])
    top = 1.05 * max(table["bound"].max(), table["bound_unscaled"].max())
    figure, panels = by_length(table, lambda axes, rows: _decay_panel(axes, rows, known.look, top))
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    known.finish(
        figure, panels, DECAY_NOTE, more={UNSCALED: lines[UNSCALED]} if UNSCALED in lines else {}
    )
    return figure


def _decay_panel(
    axes: Axes, rows: pd.DataFrame, look: Mapping[str, style.Look], top: float
) -> None:
    trained_length, last = rows["trained_length"].iloc[0], rows["distance_last"].max()
    middle = rows[["distance", "distance_last"]].prod(axis=1) ** 0.5  # of a bin
    rows = rows.assign(distance=middle)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, max(2, last))
    axes.axvspan(1, min(trained_length, last), color="0.94", linewidth=0, zorder=0)
    axes.axvline(trained_length, color=style.GREY, linewidth=0.8, linestyle=":", zorder=1)
    if not any(one.color == "black" for one in look.values()):
        one = rows[rows["scaling"] == rows["scaling"].iloc[0]]
        axes.plot(
            one["distance"], one["bound_unscaled"], label=UNSCALED, color="black",
            linestyle="--", linewidth=0.9,
        )  # fmt: skip
    for index, (scaling, curve) in enumerate(rows.groupby("scaling", sort=False)):
        style.trace(axes, curve[["distance", "bound"]], str(scaling), look, index, 12)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.length_label(int(value))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("Relative distance (tokens)", fontsize=style.SIZE)
    axes.set_ylabel("Relative upper bound of the score", fontsize=style.SIZE)
    axes.set_ylim(0, top)


WAVE_NOTE = (
    "Tokens per turn of each channel pair, unscaled 2π · base^(2i/d). Dotted: the trained window. "
    "A pair of none below it turned fully in training and has met every angle; one above has not."
)


def draw_wavelengths(frame: pd.DataFrame) -> Figure:
    """Draw one panel per length; a pair that is not rotated has no wavelength."""
    known = methods(frame)
    look = known.look

    def panel(axes: Axes, rows: pd.DataFrame) -> None:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_minor_locator(NullLocator())
        window = rows["trained_length"].iloc[0]
        axes.axhline(window, color=style.GREY, linewidth=0.8, linestyle=":", zorder=1)
        for index, (scaling, pairs) in enumerate(rows.groupby("scaling", sort=False)):
            style.trace(axes, pairs[["pair", "wavelength"]], str(scaling), look, index, 8)
        axes.set_xlabel("Channel pair i, fastest first", fontsize=style.SIZE)
        axes.set_ylabel("Wavelength (tokens)", fontsize=style.SIZE)

    figure, panels = by_length(known.drawn(frame), panel)
    known.finish(figure, panels, WAVE_NOTE)
    return figure


SCORE_NOTE = (
    "Score of a query with a key of the same content at a distance: mean over 64 random contents "
    "and heads; the bands hold 90 % of them. Left: linear axis, the trained window. Right: "
    "logarithmic, the whole length, averaged over a sixth of an octave, cut at -15. Grey: the "
    "trained window. An encoding by name has its initial parameters and no projections, which says "
    "little of a learned one. For the folder of a trained model the contents are 64 tokens of its "
    "vocabulary, passed through the norm and projections of its first layer."
)
LEAST = -15.0  # of the scores that are drawn


def draw_scores(frame: pd.DataFrame, trained_length: int) -> Figure:
    """Draw two panels a group of curves: the trained window, and the whole length."""
    groups = list(frame.groupby("panel", sort=False))
    figure, panels = style.sheet(2 * len(groups), 2, panel_height=2.4)
    names = list(frame["name"].unique())
    scaling = frame.loc[~frame["panel"].isin(MORE), "name"]  # the encoding none has no rotation
    plain = ["none"] if "none" in set(scaling) else ["rope"]
    look = style.looks(names, distinct=_distinct(frame, plain), plain=plain)
    for index, (title, rows) in enumerate(groups):
        for axes, log in zip(panels[2 * index : 2 * index + 2], (False, True), strict=True):
            near = rows if log else rows[rows["distance"] < trained_length]
            _score_panel(axes, near, look, trained_length, log=log)
            style.tidy(axes, str(title), room=3.0)
    lines = {str(line.get_label()): line for axes in panels for line in axes.get_lines()}
    drawn: dict[str, Artist] = {n: lines[n] for n in names if n in lines and look[n] != style.REST}
    others, note = len([name for name in names if look[name] == style.REST]), SCORE_NOTE
    if others:
        grey = counted(others, "others")
        drawn[grey] = Line2D([], [], color=style.REST.color, linewidth=style.REST.width)
        note += f" The first have a look of their own; thin grey: {grey}, in scores.csv."
    style.foot(figure, list(drawn.values()), list(drawn), note)
    return figure


def _distinct(frame: pd.DataFrame, plain: Collection[str]) -> list[str]:
    """Return the names that get a look of their own: all, or as many first ones as there are looks.

    Scalings, bases and encodings have as many each.
    """
    rows = frame[~frame["name"].isin(list(plain))].drop_duplicates("name")
    if len(rows) <= style.LOOKS:
        return list(rows["name"])
    kinds = rows["panel"].where(rows["panel"].isin(MORE), "scaling")
    return list(rows.groupby(kinds, sort=False)["name"].head(style.LOOKS // kinds.nunique()))


def _score_panel(
    axes: Axes,
    rows: pd.DataFrame,
    look: Mapping[str, style.Look],
    trained_length: int,
    *,
    log: bool,
) -> None:
    if log:
        rows = rows[rows["distance"] > 0]
        bins = (6 * np.log2(rows["distance"])).round().rename("bin")  # of a sixth of an octave
        means = rows.groupby(["name", bins], sort=False)[["distance", "mean", "low", "high"]].mean()
        rows = means.reset_index()  # scores vary from token to token
        axes.set_xscale("log", base=2)
        axes.axvspan(1, trained_length, color="0.94", linewidth=0, zorder=0)
        axes.axvline(trained_length, color=style.GREY, linewidth=0.8, linestyle=":", zorder=1)
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: style.length_label(int(value)))
        )
        axes.xaxis.set_minor_locator(NullLocator())
    for index, (name, curve) in enumerate(rows.groupby("name", sort=False)):
        if look[str(name)] != style.REST:
            axes.fill_between(
                curve["distance"],
                curve["low"],
                curve["high"],
                color=look[str(name)].color,
                alpha=0.08,
                linewidth=0,
            )
        style.trace(axes, curve[["distance", "mean"]], str(name), look, index, 8)
    low, high = max(LEAST, rows["low"].min()), max(LEAST + 1, rows["high"].max())
    room = 0.05 * max(high - low, 1e-3)
    axes.set_ylim(max(LEAST, low - room), high + room)
    axes.set_xlabel("Distance (tokens)", fontsize=style.SIZE)
    axes.set_ylabel("Attention score", fontsize=style.SIZE)
