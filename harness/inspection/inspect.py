"""Show what methods do to a model's channels, from its config alone, in tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.errors import UserError
from harness.files import make_folder
from harness.inspection.notes import check_rotary, notes
from harness.inspection.scores import MORE, Curve, frame, of_base, of_encoding, of_rotation, renamed
from harness.methods.channels import Channel, channels, decay, shown
from harness.methods.resolve import resolve
from harness.models.config import read_config
from harness.models.structure import built
from harness.patching.config import rope_of
from harness.patching.frequencies import check_described
from harness.plugins import load
from harness.reports._write import save_csv, save_figure
from harness.reports.plots import style
from harness.reports.plots.methods import methods
from harness.reports.plots.panel import by_length, where_changed
from harness.reports.writing.sentences import counted
from harness.sweep.plan import distinct, once_each
from harness.sweep.spec import Spec
from scaling import native
from scaling.types import Frequencies, Rope, Rotation

BINS, SAMPLED = 3, 256  # per octave of distances in a decay curve; distances of each, at most


@dataclass(frozen=True)
class Reading:
    """One method at one length."""

    scaling: str
    length: int
    rotation: Rotation
    channels: tuple[Channel, ...]

    JSON = ("scaling", "length", "attention_factor", "channels")

    @property
    def attention_factor(self) -> float:
        """Return the factor of cos and sin; of bands that of the last query."""
        return self.rotation.last.attention_factor


@dataclass(frozen=True)
class Inspection:
    """A model's rotary geometry, notes on it, and every method at every length.

    ``curves`` are scores of other bases and encodings, ``files`` what was written.
    """

    model: str
    rope: Rope
    notes: tuple[str, ...]
    readings: tuple[Reading, ...]
    curves: tuple[Curve, ...] = ()
    files: tuple[Path, ...] = ()


def inspect(
    spec: Spec, base: Sequence[float] = (), encoding: Sequence[str] = (), out: Path | None = None
) -> Inspection:
    """Compute the channels of every scaling x length, and write tables and figures into ``out``.

    ``base`` and ``encoding`` add curves to the figure of scores. Raises UserError as a sweep would.
    """
    methods = distinct("scaling", [load("method", given) for given in spec.scaling])
    trusted = spec.trust_remote_code
    model, config = read_config(spec.model, revision=spec.revision, trust_remote_code=trusted)
    check_rotary(spec.model, config)
    rope = rope_of(config)
    if native.ships(rope):
        own = built(config, config.get_text_config(), trust_remote_code=trusted)
        check_described(config.model_type, own, rope)
    lengths = spec.lengths(rope.trained_length)
    readings = []
    for method in methods:
        for length in lengths:
            rotation = resolve(method, rope, length)
            for label, part in shown(method.label, rotation):
                readings.append(Reading(label, length, part, channels(rope, part, length)))
    lines = notes(model, config, methods, lengths, trust_remote_code=trusted)
    if out and max(lengths) < 2:
        raise UserError("figures over distance need a --length of 2 tokens or more.")
    bases = [of_base(one, rope, max(lengths)) for one in base]
    encodings = [of_encoding(one, rope, max(lengths), trusted=trusted) for one in encoding]
    for flag, curves in (("base", bases), ("encoding", encodings)):
        once_each(flag, [curve.name for curve in curves])
    result = Inspection(model, rope, tuple(lines), tuple(readings), curves=(*bases, *encodings))
    return replace(result, files=tuple(write(result, out))) if out else result


def channel_frame(inspection: Inspection) -> pd.DataFrame:
    """Return one row per scaling, length and pair; an unrotated pair has no wavelength."""
    return pd.DataFrame(
        {**_head(inspection, reading), **asdict(channel)}
        for reading in inspection.readings
        for channel in reading.channels
    )


def decay_frame(inspection: Inspection) -> pd.DataFrame:
    """Return one row per scaling, length and bin of relative distances (first to last).

    The bound is the mean over the bin: it varies from token to token by more than methods differ.
    Distance 0 and short distances have bins of their own. If positions are moved, the distance
    is the true one, and the bound belongs to the moved distance from the last query. It is empty if
    that query meets no key of the bin.
    """
    plain = Frequencies(inspection.rope.inv_freq())
    frames = []
    for reading in inspection.readings:
        bins = _bins(reading.length - 1)
        curves = {
            "distance": [bin_[0] for bin_ in bins],
            "distance_last": [bin_[-1] for bin_ in bins],
            "bound": _means(reading.rotation, bins),
            "bound_unscaled": _means(plain, bins),
        }
        frames.append(pd.DataFrame({**_head(inspection, reading), **curves}))
    return pd.concat(frames, ignore_index=True)


def _bins(last: int) -> list[list[int]]:
    """Return 0 to ``last`` in bins of equal ratio: the ends of each and distances inside."""
    edges = {round(2 ** (step / BINS)) for step in range(int(BINS * np.log2(last + 1)) + 1)}
    starts = [0, *sorted(edge for edge in edges if edge <= last)]
    ends = [*(start - 1 for start in starts[1:]), last]
    return [
        sorted({round(value) for value in np.linspace(start, end, SAMPLED).tolist()})
        for start, end in zip(starts, ends, strict=True)
    ]


def _means(rotation: Rotation, bins: list[list[int]]) -> list[float]:
    every = [distance for bin_ in bins for distance in bin_]
    bounds = iter(decay(rotation, every))
    return [float(np.mean([*islice(bounds, len(bin_))])) for bin_ in bins]


def _head(inspection: Inspection, reading: Reading) -> dict[str, Any]:
    """Return the first columns of the rows of both tables."""
    rope = inspection.rope
    return {
        "model": inspection.model,
        "trained_length": rope.trained_length,
        "scaling": reading.scaling,
        "length": reading.length,
        "stretch": rope.stretch(reading.length),
        "frequencies": reading.rotation.fingerprint,
        "attention_factor": reading.attention_factor,
    }


def write(inspection: Inspection, folder: Path) -> list[Path]:
    """Write the tables as CSV and the figures as PNG, SVG and PDF; return the files."""
    make_folder(folder)
    own = [
        of_rotation(f"scaling, {r.length:,} tokens", r.scaling, r.rotation, r.length)
        for r in inspection.readings
    ]
    tables = {
        "channels": channel_frame(inspection),
        "decay": decay_frame(inspection),
        "scores": frame([*own, *renamed(inspection.curves, {curve.name for curve in own})]),
    }
    files = [folder / f"{name}.csv" for name in tables]
    for file, table in zip(files, tables.values(), strict=True):
        save_csv(table, file)
    with style.drawing():
        figures = {
            "channels": draw_channels(tables["channels"]),
            "decay": draw_decay(tables["decay"]),
            "wavelengths": draw_wavelengths(tables["channels"]),
            "scores": draw_scores(tables["scores"], inspection.rope.trained_length),
        }
        for name, figure in figures.items():
            files += save_figure(figure, folder, name)
    return files


PAIRS = 256  # of a query and a key at random positions
Rotate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def identities(rotation: Frequencies, length: int, dtype: torch.dtype) -> dict[str, float]:
    """Return the largest error, relative to the norms, of each equation that a rotation keeps."""
    draw = torch.Generator().manual_seed(0)
    size, inv_freq = 2 * len(rotation.inv_freq), rotation.inv_freq.to(dtype)
    query, key = (
        torch.randn(PAIRS, size, generator=draw, dtype=torch.float64).to(dtype) for _ in range(2)
    )
    at, other = (torch.randint(0, length, (PAIRS,), generator=draw) for _ in range(2))
    shift = torch.minimum(at, other)  # to the beginning, so that no position leaves the length
    halves, neighbours = (_rotation(inv_freq, split=split) for split in (True, False))
    norms = query.norm(dim=-1) * key.norm(dim=-1)
    score = (halves(query, at) * halves(key, other)).sum(-1)
    moved = (halves(query, at - shift) * halves(key, other - shift)).sum(-1)
    order = torch.arange(size).view(2, -1).mT.flatten()  # channel i beside i + d/2
    beside = neighbours(query[:, order], at) * neighbours(key[:, order], other)
    turned = halves(query, at).norm(dim=-1) / query.norm(dim=-1)
    return {
        "a rotation keeps the norm": float((turned - 1).abs().max()),
        "a shift of both positions keeps the score": float(((moved - score) / norms).abs().max()),
        "half-split and interleaved layouts agree": float(
            ((beside.sum(-1) - score) / norms).abs().max()
        ),
    }


def _rotation(inv_freq: torch.Tensor, *, split: bool) -> Rotate:
    """Return a rotation of channels i and i + d/2, or of neighbours."""

    def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, None].to(inv_freq.dtype) * inv_freq
        one, other = x.chunk(2, -1) if split else (x[:, ::2], x[:, 1::2])
        both = (
            one * angles.cos() - other * angles.sin(),
            other * angles.cos() + one * angles.sin(),
        )
        return torch.cat(both, -1) if split else torch.stack(both, -1).flatten(-2)

    return rotate


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
    _label(axes.xaxis, lambda value: f"{value:g}")
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=8))
    _label(axes.yaxis, lambda value: str(Fraction(value).limit_denominator(2**12)))
    axes.set_xlabel("Turns in the trained window", fontsize=style.SIZE)
    axes.set_ylabel("Ratio to unscaled frequency", fontsize=style.SIZE)


def _label(axis: Axis, text: Callable[[float], str]) -> None:
    """Label the major ticks of a logarithmic axis, and draw no others."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_locator(NullLocator())


def _distance_axis(axes: Axes, trained_length: int, last: int) -> None:
    """Let x be distances on a logarithmic scale, grey inside the trained window."""
    axes.set_xscale("log", base=2)
    axes.axvspan(1, min(trained_length, last), color="0.94", linewidth=0, zorder=0)
    axes.axvline(trained_length, color=style.GREY, linewidth=0.8, linestyle=":", zorder=1)
    _label(axes.xaxis, lambda value: style.length_label(int(value)))


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
    lines = (line for axes in panels for line in axes.get_lines())
    more = {str(line.get_label()): line for line in lines if line.get_label() == UNSCALED}
    known.finish(figure, panels, DECAY_NOTE, more=more)
    return figure


def _decay_panel(
    axes: Axes, rows: pd.DataFrame, look: Mapping[str, style.Look], top: float
) -> None:
    trained_length, last = rows["trained_length"].iloc[0], rows["distance_last"].max()
    middle = rows[["distance", "distance_last"]].prod(axis=1) ** 0.5  # of a bin
    rows = rows.assign(distance=middle)
    _distance_axis(axes, trained_length, last)
    axes.set_xlim(1, max(2, last))
    if not any(one.color == "black" for one in look.values()):
        one = rows[rows["scaling"] == rows["scaling"].iloc[0]]
        axes.plot(
            one["distance"], one["bound_unscaled"], label=UNSCALED, color="black",
            linestyle="--", linewidth=0.9,
        )  # fmt: skip
    for index, (scaling, curve) in enumerate(rows.groupby("scaling", sort=False)):
        style.trace(axes, curve[["distance", "bound"]], str(scaling), look, index, 12)
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
        _label(axes.yaxis, lambda value: f"{value:,.0f}")
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
        _distance_axis(axes, trained_length, trained_length)
    for index, (name, curve) in enumerate(rows.groupby("name", sort=False)):
        if look[str(name)] != style.REST:
            axes.fill_between(
                curve["distance"], curve["low"], curve["high"],
                color=look[str(name)].color, alpha=0.08, linewidth=0,
            )  # fmt: skip
        style.trace(axes, curve[["distance", "mean"]], str(name), look, index, 8)
    low, high = max(LEAST, rows["low"].min()), max(LEAST + 1, rows["high"].max())
    room = 0.05 * max(high - low, 1e-3)
    axes.set_ylim(max(LEAST, low - room), high + room)
    axes.set_xlabel("Distance (tokens)", fontsize=style.SIZE)
    axes.set_ylabel("Attention score", fontsize=style.SIZE)
