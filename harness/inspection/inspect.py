"""Show what each method of a sweep does to a model's channels, from the config alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from harness.files import make_folder
from harness.inspection import channel_figure, decay_figure, score_figure, scores, wave_figure
from harness.inspection.notes import check_rotary, notes
from harness.methods.channels import Change, Channel, channels, decay, shown
from harness.methods.resolve import resolve
from harness.models.config import read_config
from harness.patching.config import rope_of
from harness.plugins import load
from harness.reports._write import save_csv, save_figure
from harness.reports.plots.style import drawing
from harness.reports.writing.sentences import counted
from harness.sweep.plan import unlike
from harness.sweep.spec import Spec
from scaling.types import Frequencies, Rope, Rotation

KINDS: tuple[Change, ...] = ("unchanged", "in part", "in full", "beyond", "faster")
BINS, SAMPLED = 3, 256  # per octave of distances in a decay curve; distances of each, at most


@dataclass(frozen=True)
class Reading:
    """One method at one length."""

    scaling: str
    length: int
    rotation: Rotation
    channels: tuple[Channel, ...]

    @property
    def attention_factor(self) -> float:
        """Return the factor of cos and sin; of bands that of the last query."""
        return self.rotation.last.attention_factor


@dataclass(frozen=True)
class Inspection:
    """A model's rotary geometry, notes on it, and every method at every length."""

    model: str
    rope: Rope
    notes: tuple[str, ...]
    readings: tuple[Reading, ...]


def inspect(spec: Spec) -> Inspection:
    """Compute the channels of every scaling x length; raise UserError as a sweep would."""
    methods = unlike("scaling", [load("method", given) for given in spec.scaling])
    trusted = spec.trust_remote_code
    model, config = read_config(spec.model, revision=spec.revision, trust_remote_code=trusted)
    check_rotary(spec.model, config)
    rope = rope_of(config)
    lengths = spec.lengths(rope.trained_length)
    readings = []
    for method in methods:
        for length in lengths:
            found = resolve(method, rope, length)
            for label, part in shown(method.label, found):
                readings.append(Reading(label, length, part, channels(rope, part, length)))
    lines = notes(model, config, methods, lengths, trust_remote_code=trusted)
    return Inspection(model, rope, tuple(lines), tuple(readings))


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
    Distance 0 and short distances have bins of their own. Where positions are moved, the distance
    is the true one and the bound is that of the moved distance from the last query of the context;
    empty where the query meets no key of the bin.
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


def _means(found: Rotation, bins: list[list[int]]) -> list[float]:
    every = [distance for bin_ in bins for distance in bin_]
    bounds = iter(decay(found, every))
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


def write(inspection: Inspection, folder: Path, more: Sequence[scores.Curve] = ()) -> list[Path]:
    """Write the tables as CSV and the figures as PNG, SVG and PDF; return the files.

    ``more`` are curves of other bases and encodings, beside those of the scalings.
    """
    make_folder(folder)
    files, window = [], inspection.rope.trained_length
    own = [
        scores.of_rotation(f"scaling, {r.length:,} tokens", r.scaling, r.rotation, r.length)
        for r in inspection.readings
    ]
    tables = {
        "channels": channel_frame(inspection),
        "decay": decay_frame(inspection),
        "scores": scores.frame([*own, *scores.renamed(more, {curve.name for curve in own})]),
    }
    for name, table in tables.items():
        files.append(folder / f"{name}.csv")
        save_csv(table, files[-1])
    figures: tuple[tuple[str, str, Callable[[pd.DataFrame], Figure]], ...] = (
        ("channels", "channels", channel_figure.draw),
        ("decay", "decay", decay_figure.draw),
        ("wavelengths", "channels", wave_figure.draw),
        ("scores", "scores", partial(score_figure.draw, trained_length=window)),
    )
    for name, of, draw in figures:
        with drawing():
            files += save_figure(draw(tables[of]), folder, name)
    return files


def show(inspection: Inspection, console: Console) -> None:
    """Print a row per scaling and length: how many channel pairs change, and how."""
    rope = inspection.rope
    turns = rope.turns().tolist()
    slow = sum(turn < 1 for turn in turns)
    console.print(
        f"{inspection.model}: trained window {rope.trained_length:,} tokens, base {rope.base:g}, "
        f"{len(turns)} channel pairs of {turns[0]:,.1f} to {turns[-1]:.2g} turns in the window, "
        f"{slow} of less than one",
        *inspection.notes,
        sep="\n",
        highlight=False,
        markup=False,
    )
    found = {channel.change for reading in inspection.readings for channel in reading.channels}
    kinds = KINDS[:3] + tuple(kind for kind in KINDS[3:] if kind in found)
    table = Table(box=box.SIMPLE, padding=0)
    table.add_column("scaling", overflow="fold")  # fits 80 columns, the other columns first
    heads = [kind.replace("in ", "in\n").replace("un", "un-\n") for kind in kinds]
    for head in ("length", "att.\nfactor", *heads, "unseen", "longest\nwave"):
        table.add_column(head, justify="right", no_wrap=True)
    for reading in inspection.readings:
        table.add_row(*_row(reading, rope, kinds))
    console.print(table)
    console.print(
        "Channel pairs unchanged, interpolated in part or in full (by the stretch)"
        f"{', slowed beyond it' * ('beyond' in kinds)}{', made faster' * ('faster' in kinds)}; "
        "unseen: those (0 the fastest) that meet angles not seen in training; longest wave: "
        "tokens in a turn of the slowest.",
        *_moved(inspection),
        sep="\n",
        highlight=False,
        markup=False,
    )


def _moved(inspection: Inspection) -> list[str]:
    """Return a sentence on the reach of every method that moves positions."""
    last = {r.scaling: r for r in inspection.readings if r.rotation.moves_positions}
    lines = []
    for scaling, reading in last.items():
        bands = reading.rotation.as_bands(reading.length)
        line = (
            f"{scaling} at {counted(reading.length, 'tokens')}: relative positions up to "
            f"{bands.reach:,.6g} of {reading.length - 1:,}"
        )
        share = bands.pairs / (reading.length * (reading.length + 1) / 2)
        rest = f"; {1 - share:.0%} of the pairs are not attended to." if share < 1 else "."
        lines.append(line + rest)
    return lines


def _unseen(pairs: list[int]) -> str:
    """Return the number of pairs, and their range where they are neighbours."""
    joined = pairs and pairs[-1] - pairs[0] == len(pairs) - 1
    return f"{len(pairs)} ({pairs[0]}–{pairs[-1]})" if joined else str(len(pairs))


def _row(reading: Reading, rope: Rope, kinds: tuple[Change, ...]) -> list[str]:
    changes = [channel.change for channel in reading.channels]
    waves = [channel.wavelength or math.inf for channel in reading.channels]  # an unrotated pair: ∞
    return [
        reading.scaling,
        f"{reading.length} ({reading.length / rope.trained_length:.3g}x)",
        f"{reading.attention_factor:.4g}",
        *(str(changes.count(kind)) for kind in kinds),
        _unseen([channel.pair for channel in reading.channels if channel.unseen]),
        f"{max(waves):,.0f}".replace("inf", "∞"),
    ]
