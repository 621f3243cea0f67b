"""Show what methods do to a model's channels, from its config alone, in tables and two figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from tabulate import tabulate

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder
from ropewalk.harness.models.checkpoint import check_rope
from ropewalk.harness.models.config import label, open_config
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.harness.reports import _style as style
from ropewalk.harness.reports._text import csv
from ropewalk.harness.reports._write import figure_files, save
from ropewalk.harness.sweep.notes import notes
from ropewalk.harness.sweep.plan import distinct
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling.types import Rope, Rotation

Change = Literal["unchanged", "in part", "in full", "beyond", "faster"]
# Two float32 frequencies that differ by less, relatively, are one: an exponent that is rounded to
# eps moves base ** exponent by ln(base) times that, and float32 holds no base above its maximum.
FLOAT32 = torch.finfo(torch.float32)
ROUNDING = math.log(FLOAT32.max) * FLOAT32.eps  # about 1e-5
SHOWN = 5  # layers, from the first to the last, of a method that gives each its own
CONTENTS = 64  # random contents of a score curve
KINDS: tuple[Change, ...] = ("unchanged", "in part", "in full", "beyond", "faster")
DISTANCES = 400  # at most, of a curve


@dataclass(frozen=True)
class Channel:
    """One channel pair, read at one length.

    Attributes:
        turns: turns in the trained window, unscaled.
        wavelength_unscaled, wavelength: tokens per turn; None for a pair that is not rotated.
        ratio: the frequency divided by the unscaled one.
        change: the ratio compared with the stretch, max(1, length / trained_length); ``beyond``
            means slowed by more than the stretch.
        unseen: whether the pair meets angles that it never had in training.
    """

    pair: int
    turns: float
    wavelength_unscaled: float
    wavelength: float | None
    ratio: float
    change: Change
    unseen: bool


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
    """A model's rotary geometry, notes on it, every method at every length, and written files."""

    model: str
    rope: Rope
    notes: tuple[str, ...]
    readings: tuple[Reading, ...]
    files: tuple[Path, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(inspection: Inspection) -> Iterator[str]:
    """Yield the geometry, one row per scaling and length, and the reach of moved positions."""
    rope = inspection.rope
    turns = rope.turns().tolist()
    slow = sum(turn < 1 for turn in turns)
    yield (
        f"{inspection.model}: trained window {rope.trained_length:,} tokens, base {rope.base:g}, "
        f"{len(turns)} channel pairs of {turns[0]:,.1f} to {turns[-1]:.2g} turns in the window, "
        f"{slow} of less than one"
    )
    yield from inspection.notes
    seen = {channel.change for reading in inspection.readings for channel in reading.channels}
    kinds = KINDS[:3] + tuple(kind for kind in KINDS[3:] if kind in seen)
    heads = ["length", "att.\nfactor", *(kind.replace("in ", "in\n") for kind in kinds)]
    heads = ["scaling", *heads, "unseen", "longest\nwave"]
    rows = [_row(reading, rope, kinds) for reading in inspection.readings]
    align = ["left", *["right"] * (len(heads) - 1)]
    yield tabulate(rows, heads, "simple", colalign=align, disable_numparse=True)
    yield (
        "Channel pairs unchanged, interpolated in part or in full (by the stretch)"
        f"{', slowed beyond it' * ('beyond' in kinds)}{', made faster' * ('faster' in kinds)}; "
        "unseen: those (0 the fastest) that meet angles not seen in training; longest wave: "
        "tokens in a turn of the slowest."
    )
    moved = {r.scaling: r for r in inspection.readings if r.rotation.moves_positions}
    for scaling, reading in moved.items():
        bands = reading.rotation.as_bands(reading.length)
        share = bands.pairs / (reading.length * (reading.length + 1) / 2)
        rest = f"; {100 * (1 - share):.0f} % of the pairs are not attended to" if share < 1 else ""
        yield (
            f"{scaling} at {reading.length:,} tokens: relative positions up to "
            f"{bands.reach:,.6g} of {reading.length - 1:,}{rest}."
        )
    yield from map(str, inspection.files)


def _row(reading: Reading, rope: Rope, kinds: tuple[Change, ...]) -> list[str]:
    changes = [channel.change for channel in reading.channels]
    waves = [channel.wavelength or math.inf for channel in reading.channels]  # an unrotated pair: ∞
    unseen = [channel.pair for channel in reading.channels if channel.unseen]
    neighbours = unseen and unseen[-1] - unseen[0] == len(unseen) - 1
    return [
        reading.scaling,
        f"{reading.length} ({reading.length / rope.trained_length:.3g}x)",
        f"{reading.attention_factor:.4g}",
        *(str(changes.count(kind)) for kind in kinds),
        f"{len(unseen)} ({unseen[0]}–{unseen[-1]})" if neighbours else str(len(unseen)),
        f"{max(waves):,.0f}".replace("inf", "∞"),
    ]


def inspect(spec: Spec, out: Path | None = None) -> Inspection:
    """Compute the channels of every scaling x length, and write tables and figures into ``out``.

    Raises UserError as a sweep would.
    """
    methods = distinct("scaling", [load("method", name) for name in spec.scaling])
    trusted = spec.trust_remote_code
    where, _, config = open_config(spec.model, spec.revision, trusted)
    model = label(spec.model, where)
    rope = rope_of(config, spec.trained_length)
    check_rope(config, rope, trust_remote_code=trusted)
    lengths = spec.lengths(rope.trained_length)
    if out and max(lengths) < 2:
        raise UserError("figures over distance need a --length of 2 tokens or more.")
    readings = [
        Reading(label, length, part, channels(rope, part, length))
        for method in methods
        for length in lengths
        for label, part in _parts(method.label, resolve(method, rope, length))
    ]
    lines = notes(model, config, methods, rope, trust_remote_code=trusted)
    result = Inspection(model, rope, tuple(lines), tuple(readings))
    return replace(result, files=tuple(write(result, out))) if out else result


def _parts(label: str, rotation: Rotation) -> list[tuple[str, Rotation]]:
    if not rotation.per_layer:
        return [(label, rotation)]
    layers = rotation.frequency_sets()
    places = {round((len(layers) - 1) * step / (SHOWN - 1)) for step in range(SHOWN)}
    return [(f"{label} in layer {at + 1}", layers[at]) for at in sorted(places)]


def channels(rope: Rope, rotation: Rotation, length: int) -> tuple[Channel, ...]:
    """Return every channel pair, fastest first; of bands as the last query meets its farthest key.

    A pair that turned fully in training saw every angle. One that did not has unseen angles where
    its largest, over all bands, exceeds that of the trained window.
    """
    frequencies, largest = rotation.farthest.inv_freq, rotation.largest_angles(length)
    rows = zip(rope.inv_freq().tolist(), frequencies.tolist(), largest.tolist(), strict=True)
    pairs = []
    for pair, (plain, new, angle) in enumerate(rows):
        trained, ratio = rope.trained_length * plain, new / plain  # radians
        turns, slowed = trained / (2 * math.pi), ratio * rope.stretch(length)
        change: Change = "beyond"
        if ratio > 1 + ROUNDING:
            change = "faster"
        elif ratio >= 1 - ROUNDING:
            change = "unchanged"
        elif slowed >= 1 - ROUNDING:
            change = "in part" if slowed > 1 + ROUNDING else "in full"
        waves = 2 * math.pi / plain, 2 * math.pi / new if new else None
        unseen = turns < 1 and angle > trained * (1 + ROUNDING)
        pairs.append(Channel(pair, turns, *waves, ratio, change, unseen))
    return tuple(pairs)


def score_frame(inspection: Inspection) -> pd.DataFrame:
    """Return one row per scaling, length and distance to the last query.

    ``mean``, ``low`` and ``high`` are the attention scores of a query with a key of the same
    content: the mean and the 5 % and 95 % quantiles over random contents, divided by
    sqrt(head_dim). They are NaN at a distance that the query does not attend to.
    """
    frames = []
    for reading in inspection.readings:
        even = np.geomspace(1, reading.length, DISTANCES).astype(int) - 1
        distance = torch.from_numpy(np.unique(even))
        angles = reading.rotation.angles(distance)
        pairs = angles.shape[1]
        draw = torch.Generator().manual_seed(0)
        normal = torch.randn(CONTENTS, pairs, 2, dtype=torch.float64, generator=draw)
        factor = reading.rotation.strength / (2 * pairs) ** 0.5
        scores = factor * normal.square().sum(-1) @ angles.cos().mT
        low, high = (scores.quantile(share, 0).numpy() for share in (0.05, 0.95))
        curve = {"distance": distance, "mean": scores.mean(0).numpy(), "low": low, "high": high}
        frames.append(pd.DataFrame({**_head(inspection, reading), **curve}))
    return pd.concat(frames, ignore_index=True)


def _head(inspection: Inspection, reading: Reading) -> dict[str, Any]:
    return {
        "model": inspection.model,
        "trained_length": inspection.rope.trained_length,
        "scaling": reading.scaling,
        "length": reading.length,
        "stretch": inspection.rope.stretch(reading.length),
        "frequencies": reading.rotation.fingerprint,
        "attention_factor": reading.attention_factor,
    }


def write(inspection: Inspection, folder: Path) -> list[Path]:
    """Write the tables as CSV and the figures as PNG, SVG and PDF; return the files."""
    make_folder(folder)
    pairs = pd.DataFrame(
        {**_head(inspection, reading), **asdict(channel)}
        for reading in inspection.readings
        for channel in reading.channels
    )
    scores = score_frame(inspection)
    files = save({"csv": csv(pairs).encode()}, folder / "channels")
    files += save({"csv": csv(scores).encode()}, folder / "scores")
    octave = (6 * np.log2(scores["distance"].where(scores["distance"] > 0))).round()
    columns = ["model", "trained_length", "length", "scaling", "frequencies", octave.rename("bin")]
    curves = scores.groupby(columns, sort=False)[["distance", "mean", "low", "high"]].mean()
    with style.drawing():
        figure = _drawn(pairs, "pair", "wavelength", WAVE_NOTE)
        files += save(figure_files(figure), folder / "wavelengths")
        figure = _drawn(curves.reset_index(), "distance", "mean", SCORE_NOTE)
        files += save(figure_files(figure), folder / "scores")
    return files


WAVE_NOTE = (
    "Tokens per turn of each channel pair, unscaled 2π · base^(2i/d). Dotted: the trained window. "
    "A pair of none below it turned fully in training and has met every angle; one above has not."
)
SCORE_NOTE = (
    "Attention score of a query with a key of the same content: mean over 64 random contents, "
    "averaged over a sixth of an octave of distances; the bands hold 90 % of the contents. Grey: "
    "the trained window."
)


def _drawn(frame: pd.DataFrame, x: str, y: str, note: str) -> Figure:
    known = style.methods(frame)
    groups = list(known.drawn(frame).groupby("length"))
    columns = style.columns_for(len(groups))
    figure, panels, room = style.sheet(len(groups), columns, 2.6)
    dotted: dict[str, Any] = {"color": style.GREY, "linewidth": 0.8, "linestyle": ":", "zorder": 1}
    for axes, (_, rows) in zip(panels, groups, strict=True):
        first, last = rows.iloc[0], rows[x].max()
        window = int(first["trained_length"])
        if x == "pair":
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.minorticks_off()
            axes.axhline(window, **dotted)
            axes.set(xlabel="Channel pair i, fastest first", ylabel="Wavelength (tokens)")
        else:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: style.length_label(int(value)))
            axes.axvspan(1, min(window, last), color="0.94", linewidth=0, zorder=0)
            axes.axvline(window, **dotted)
            axes.set(xlabel="Distance (tokens)", ylabel="Attention score")
        for scaling, part in rows.groupby("scaling", sort=False):
            look = known.look[str(scaling)]
            if "low" in part and look != style.REST:
                axes.fill_between(
                    part[x], part["low"], part["high"], color=look.color, alpha=0.08, linewidth=0
                )
            known.plot(axes, part[[x, y]], str(scaling))
        length = int(first["length"])
        title = f"{first['model']}, {style.length_label(length)} tokens ({length / window:.3g}×)"
        axes.set_title(style.folded(title, room))
    known.finish(figure, panels, note)
    return figure
