"""Show what each method of a sweep does to a model's channels, from the config alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from harness.errors import UserError
from harness.files import make_folder
from harness.inspection.figures import draw_channels, draw_decay, draw_scores, draw_wavelengths
from harness.inspection.notes import check_rotary, notes
from harness.inspection.scores import Curve, frame, of_base, of_encoding, of_rotation, renamed
from harness.methods.channels import Channel, channels, decay, shown
from harness.methods.resolve import resolve
from harness.models.config import read_config
from harness.patching.config import rope_of
from harness.plugins import load
from harness.reports._write import save_csv, save_figure
from harness.reports.plots.style import drawing
from harness.sweep.plan import distinct, once_each
from harness.sweep.spec import Spec
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
    files, window = [], inspection.rope.trained_length
    own = [
        of_rotation(f"scaling, {r.length:,} tokens", r.scaling, r.rotation, r.length)
        for r in inspection.readings
    ]
    tables = {
        "channels": channel_frame(inspection),
        "decay": decay_frame(inspection),
        "scores": frame([*own, *renamed(inspection.curves, {curve.name for curve in own})]),
    }
    for name, table in tables.items():
        files.append(folder / f"{name}.csv")
        save_csv(table, files[-1])
    figures: tuple[tuple[str, str, Callable[[pd.DataFrame], Figure]], ...] = (
        ("channels", "channels", draw_channels),
        ("decay", "decay", draw_decay),
        ("wavelengths", "channels", draw_wavelengths),
        ("scores", "scores", partial(draw_scores, trained_length=window)),
    )
    for name, of, draw in figures:
        with drawing():
            files += save_figure(draw(tables[of]), folder, name)
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
