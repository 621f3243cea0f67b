"""Show what methods do to a model's channels, from its config alone, in tables and two figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import check_rope, label, open_config, quantization
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.harness.reports import _style as style
from ropewalk.harness.reports._text import as_text, folded
from ropewalk.harness.reports._write import figure_files, save
from ropewalk.harness.sweep.notes import notes
from ropewalk.harness.sweep.plan import distinct
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling.types import Band, Bands, Rope, Rotation

# Two float32 frequencies that differ by less, relatively, are one: an exponent that is rounded to
# eps moves base ** exponent by ln(base) times that, and float32 holds no base above its maximum.
FLOAT32 = torch.finfo(torch.float32)
ROUNDING = math.log(FLOAT32.max) * FLOAT32.eps  # about 1e-5
SHOWN = 5  # layers, from the first to the last, of a method that gives each its own
CONTENTS = 64  # random contents of a score curve
KINDS = ("unchanged", "in part", "in full", "beyond", "faster")
DISTANCES = 400  # at most, of a curve
MEANING = (
    "Channel pairs unchanged, interpolated in part or in full (by the stretch), slowed beyond it, "
    "or made faster; unseen: those (0 the fastest) that meet angles not seen in training; longest "
    "wave: tokens in a turn of the slowest."
)
Reading = tuple[str, int, Rotation]  # a method's name, a length, and what the method is there


@dataclass(frozen=True)
class Inspection:
    """A model's rotary geometry, and what methods do to it.

    Attributes:
        model: its name.
        rope: its rotary embedding.
        notes: sentences on the model and the methods.
        readings: every method at every length.
        channels: one row per method, length and channel pair; see ``channels``.
        files: what was written.
    """

    model: str
    rope: Rope
    notes: Sequence[str]
    readings: Sequence[Reading]
    channels: pd.DataFrame
    files: Sequence[Path] = ()

    JSON = ("model", "rope", "notes", "channels", "files")

    def __str__(self) -> str:
        turns = self.rope.turns().tolist()
        head = (
            f"{self.model}: trained window {self.rope.trained_length:,} tokens, base "
            f"{self.rope.base:g}, {len(turns)} channel pairs of {turns[0]:,.1f} to {turns[-1]:.2g} "
            f"turns in the window, {sum(turn < 1 for turn in turns)} of less than one"
        )
        moved = {scaling: (length, rotation) for scaling, length, rotation in self.readings
                 if rotation.moves_positions}  # fmt: skip
        reaches = [_reach(scaling, *reading) for scaling, reading in moved.items()]
        above = "\n".join(map(folded, [head, *self.notes]))
        below = "\n".join([*map(folded, [MEANING, *reaches]), *map(str, self.files)])
        return f"{above}\n\n{as_text(_counts(self.channels))}\n\n{below}"


def _counts(channels: pd.DataFrame) -> pd.DataFrame:
    """Return one row per scaling and length: how many channel pairs it changes, and how."""
    kinds = [kind for kind in KINDS if (channels["change"] == kind).any()]
    rows = []
    for (scaling, length), pairs in channels.groupby(["scaling", "length"], sort=False):
        first, unseen = pairs.iloc[0], pairs["pair"][pairs["unseen"]].tolist()
        adjacent = unseen and unseen[-1] - unseen[0] == len(unseen) - 1
        slowest = pairs["wavelength"].fillna(math.inf).max()
        rows.append({
            "scaling": scaling, "length": f"{length} ({length / first['trained_length']:.3g}x)",
            "att. factor": f"{first['attention_factor']:.4g}",
            **{kind: (pairs["change"] == kind).sum() for kind in kinds},
            "unseen": f"{len(unseen)} ({unseen[0]}–{unseen[-1]})" if adjacent else len(unseen),
            "longest wave": f"{slowest:,.0f}".replace("inf", "∞"),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _reach(scaling: str, length: int, rotation: Rotation) -> str:
    """Say how far the relative positions of moved positions reach."""
    bands = rotation.as_bands(length)
    share = bands.pairs / (length * (length + 1) / 2)
    rest = f"; {100 * (1 - share):.0f} % of the pairs are not attended to" if share < 1 else ""
    return (
        f"{scaling} at {length:,} tokens: relative positions up to {bands.reach:,.6g} of "
        f"{length - 1:,}{rest}."
    )


def inspect(spec: Spec, out: Path | None = None) -> Inspection:
    """Compute the channels of every scaling x length, and write tables and figures into ``out``.

    Raises UserError as a sweep would.
    """
    methods = distinct("scaling", [load("method", name) for name in spec.scaling])
    trusted = spec.trust_remote_code
    where, _, config = open_config(spec.model, spec.revision, trusted)
    model = label(spec.model, quantization(where, config))
    rope = rope_of(config, spec.trained_length)
    check_rope(config, rope, trust_remote_code=trusted)
    lengths = spec.lengths(rope.trained_length)
    if out and max(lengths) < 2:
        raise UserError("figures over distance need a --length of 2 tokens or more.")
    readings = [
        (name, length, part)
        for method in methods
        for length in lengths
        for name, part in _parts(method.label, resolve(method, rope, length))
    ]
    lines = notes(model, config, methods, rope, trust_remote_code=trusted)
    pairs = _of_each(model, rope, readings, partial(channels, rope))
    result = Inspection(model, rope, lines, readings, pairs)
    return replace(result, files=write(result, out)) if out else result


def _parts(label: str, rotation: Rotation) -> list[tuple[str, Rotation]]:
    if not rotation.per_layer:
        return [(label, rotation)]
    layers = rotation.frequency_sets()
    places = {round((len(layers) - 1) * step / (SHOWN - 1)) for step in range(SHOWN)}
    return [(f"{label} in layer {at + 1}", layers[at]) for at in sorted(places)]


def _of_each(
    model: str,
    rope: Rope,
    readings: Sequence[Reading],
    columns: Callable[[Rotation, int], dict[str, Any]],
) -> pd.DataFrame:
    """Return a table of columns that are computed of every reading."""
    frames = [
        pd.DataFrame({
            "model": model, "trained_length": rope.trained_length, "scaling": scaling,
            "length": length, "stretch": rope.stretch(length),
            "frequencies": rotation.fingerprint,
            "attention_factor": rotation.last.attention_factor,  # of bands that of the last query
            **columns(rotation, length),
        })
        for scaling, length, rotation in readings
    ]  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def channels(rope: Rope, rotation: Rotation, length: int) -> dict[str, Any]:
    """Return every channel pair, fastest first; of bands as the last query meets its farthest key.

    - ``turns`` are those in the trained window, unscaled, and ``wavelength`` and
      ``wavelength_unscaled`` tokens per turn, NaN for a pair that is not rotated.
    - ``ratio`` is the frequency divided by the unscaled one, and ``change`` compares it with the
      stretch: ``beyond`` is slowed by more.
    - ``unseen`` pairs meet angles that they never had in training. A pair that turned fully in
      training saw every angle. One that did not has unseen angles where its largest, over all
      bands, exceeds that of the trained window.
    """
    bands = rotation.as_bands(length)
    farthest = bands.of_last_query()[0][0].frequencies.inv_freq
    most = torch.stack([turned(band, band.reaches) for band in bands.bands]).amax(0)
    plain, new, largest = (part.double().numpy() for part in (rope.inv_freq(), farthest, most))
    trained, ratio = rope.trained_length * plain, new / plain  # radians
    turns, slowed = trained / (2 * math.pi), ratio * rope.stretch(length)
    change = np.select(
        [
            ratio > 1 + ROUNDING,
            ratio >= 1 - ROUNDING,
            slowed > 1 + ROUNDING,
            slowed >= 1 - ROUNDING,
        ],
        ["faster", "unchanged", "in part", "in full"],
        "beyond",
    )
    return {
        "pair": np.arange(len(plain)), "turns": turns, "wavelength_unscaled": 2 * math.pi / plain,
        "wavelength": np.divide(2 * math.pi, new, out=np.full_like(new, np.nan), where=new != 0),
        "ratio": ratio, "change": change,
        "unseen": (turns < 1) & (largest > trained * (1 + ROUNDING)),
    }  # fmt: skip


def turned(band: Band, relative: torch.Tensor) -> torch.Tensor:
    """Return the angles of a band at relative positions ``(…, pairs)``: radians, float64."""
    angles = relative * band.frequencies.inv_freq
    return angles if band.phase is None else angles + band.phase


def angles_of(bands: Bands, distances: torch.Tensor) -> torch.Tensor:
    """Return the angle of every channel pair between the last query and keys, in radians.

    float64 ``(distances, pairs)``, by the true distance in tokens; NaN where the query does not
    attend to the key. Where heads differ it is that of the last head of the last layer.
    """
    angles = torch.full((len(distances), len(bands.last.inv_freq)), torch.nan).double()
    keys = bands.length - 1 - distances.long()
    for band, first, end in bands.of_last_query():
        met = (keys >= first) & (keys < end)
        relative = band.query[-1] - band.key[keys[met]]
        column = None if band.column is None else band.column.reshape(-1, band.column.shape[-1])[-1]
        angles[met] = turned(band, relative[:, None] if column is None else relative[:, column])
    return angles


def scores(inspection: Inspection) -> pd.DataFrame:
    """Return one row per scaling, length and distance to the last query.

    ``mean``, ``low`` and ``high`` are the attention scores of a query with a key of the same
    content: the mean and the 5 % and 95 % quantiles over random contents, divided by
    sqrt(head_dim). They are NaN at a distance that the query does not attend to.
    """

    def curve(rotation: Rotation, length: int) -> dict[str, Any]:
        even = np.geomspace(1, length, DISTANCES).astype(int) - 1
        distance, bands = torch.from_numpy(np.unique(even)), rotation.as_bands(length)
        angles = angles_of(bands, distance)
        pairs = angles.shape[1]
        draw = torch.Generator().manual_seed(0)
        normal = torch.randn(CONTENTS, pairs, 2, dtype=torch.float64, generator=draw)
        scale = 1.0 if bands.query_scale is None else float(bands.query_scale[-1])
        factor = bands.last.attention_factor**2 * scale / (2 * pairs) ** 0.5
        every = factor * normal.square().sum(-1) @ angles.cos().mT
        low, high = (every.quantile(share, 0).numpy() for share in (0.05, 0.95))
        return {"distance": distance, "mean": every.mean(0).numpy(), "low": low, "high": high}

    return _of_each(inspection.model, inspection.rope, inspection.readings, curve)


WAVE_NOTE = (
    "Tokens per turn of each channel pair, unscaled 2π · base^(2i/d). Dotted: the trained window. "
    "A pair of none below it turned fully in training and has met every angle; one above has not."
)
SCORE_NOTE = (
    "Attention score of a query with a key of the same content: mean over 64 random contents, "
    "averaged over a sixth of an octave of distances; the bands hold 90 % of the contents. Grey: "
    "the trained window."
)


@style.drawing()
def write(inspection: Inspection, folder: Path) -> list[Path]:
    """Write the tables as CSV and the figures as PNG; return the files."""
    curves = scores(inspection)
    files = {"channels.csv": inspection.channels.to_csv(index=False).encode()}
    files["scores.csv"] = curves.to_csv(index=False).encode()
    octave = (6 * np.log2(curves["distance"].where(curves["distance"] > 0))).round()
    columns = ["model", "trained_length", "length", "scaling", "frequencies", octave.rename("bin")]
    means = curves.groupby(columns, sort=False)[["distance", "mean", "low", "high"]].mean()
    figure = _drawn(inspection.channels, "pair", "wavelength", WAVE_NOTE)
    files["wavelengths.png"] = figure_files(figure)["png"]
    figure = _drawn(means.reset_index(), "distance", "mean", SCORE_NOTE)
    files["scores.png"] = figure_files(figure)["png"]
    return save(files, folder)


def _drawn(frame: pd.DataFrame, x: str, y: str, note: str) -> Figure:
    known = style.methods(frame)
    groups = known.drawn(frame).groupby("length")
    figure, panels, letters = style.sheet(len(groups), 2.6)
    for axes, (_, rows) in zip(panels, groups, strict=True):
        first = rows.iloc[0]
        length, window = int(first["length"]), int(first["trained_length"])
        if x == "pair":
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axes.axhline(
                window, color=style.GREY, linewidth=0.8, linestyle=":", zorder=1,
                label="trained window",
            )  # fmt: skip
            axes.set(xlabel="Channel pair i, fastest first", ylabel="Wavelength (tokens)")
        else:
            style.length_axis(axes, 0.95, length * 1.05, window)
            axes.set(xlabel="Distance (tokens)", ylabel="Attention score")
        for scaling, part in rows.groupby("scaling", sort=False):
            color = known.look[str(scaling)].color
            if x == "distance" and known.look[str(scaling)] != style.REST:
                axes.fill_between(
                    part[x], part["low"], part["high"], color=color, alpha=0.08, linewidth=0
                )
            known.plot(axes, part[x], part[y], str(scaling))
        at = f"{style.length_label(length)} tokens ({length / window:.3g}×)"
        axes.set_title(fill(f"{first['model']}, {at}", letters))
    known.finish(figure, note)
    return figure
