"""Compute what a method does to the channel pairs of a rotary embedding, without a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from scaling.types import Band, Bands, PerLayerFrequencies, Rope, Rotation, frequencies_of, reach_of

Change = Literal["unchanged", "in part", "in full", "beyond", "faster"]
# Two float32 frequencies that differ by less, relatively, are one: an exponent that is rounded to
# eps moves base ** exponent by ln(base) times that, and float32 holds no base above its maximum.
FLOAT32 = torch.finfo(torch.float32)
ROUNDING = math.log(FLOAT32.max) * FLOAT32.eps  # about 1e-5
SHOWN = 5  # layers, from the first to the last, of a method that gives each its own


@dataclass(frozen=True)
class Channel:
    """One channel pair, read at one length.

    ``turns`` are those it made in the trained window, unscaled; wavelengths are tokens per turn,
    None for a pair that is not rotated; ``ratio`` is the frequency over the unscaled one;
    ``change`` compares it with the stretch, max(1, length / trained_length) (``beyond``: slowed
    by more than that); ``unseen`` marks a pair that meets angles it never had in training.
    """

    pair: int
    turns: float
    wavelength_unscaled: float
    wavelength: float | None
    ratio: float
    change: Change
    unseen: bool


def shown(label: str, found: Rotation) -> list[tuple[str, Rotation]]:
    """Return a rotation by the name it is shown under; of each layer's frequencies, some layers."""
    if not isinstance(found, PerLayerFrequencies):
        return [(label, found)]
    last = len(found.layers) - 1
    places = sorted({round(last * step / (SHOWN - 1)) for step in range(SHOWN)})
    return [(f"{label} in layer {at + 1}", found.layers[at]) for at in places]


def channels(rope: Rope, found: Rotation, length: int) -> tuple[Channel, ...]:
    """Return every channel pair, fastest first; of bands as the last query meets its farthest key.

    A pair that turned fully in training saw every angle. One that did not has unseen angles where
    its largest, over all bands, exceeds that of the trained window.
    """
    if isinstance(found, Bands):
        new = _of_last(found)[0][0].frequencies.inv_freq
        largest = torch.stack([_turned(band, reach_of(band)) for band in found.bands]).amax(0)
    else:
        new = frequencies_of(found).inv_freq
        largest = length * new.double()
    pairs = zip(rope.inv_freq().tolist(), new.tolist(), largest.tolist(), strict=True)
    return tuple(_channel(rope, length, index, *pair) for index, pair in enumerate(pairs))


def _channel(
    rope: Rope, length: int, pair: int, plain: float, new: float, largest: float
) -> Channel:
    trained = rope.trained_length * plain  # radians
    turns = trained / (2 * math.pi)
    return Channel(
        pair=pair,
        turns=turns,
        wavelength_unscaled=2 * math.pi / plain,
        wavelength=2 * math.pi / new if new else None,
        ratio=new / plain,
        change=_change(new / plain, rope.stretch(length)),
        unseen=turns < 1 and largest > trained * (1 + ROUNDING),
    )


def _change(ratio: float, stretch: float) -> Change:
    if ratio > 1 + ROUNDING:
        return "faster"
    if ratio >= 1 - ROUNDING:
        return "unchanged"
    if ratio * stretch > 1 + ROUNDING:
        return "in part"
    return "in full" if ratio * stretch >= 1 - ROUNDING else "beyond"


def _turned(band: Band, apart: torch.Tensor | float) -> torch.Tensor:
    """Return the angles of pairs so many tokens apart, after rotation: float64, pairs last."""
    angles = torch.as_tensor(apart, dtype=torch.float64)[..., None] * band.frequencies.inv_freq
    return angles if band.phase is None else angles + band.phase


def _of_last(found: Bands) -> list[tuple[Band, int, int]]:
    """Return the bands in which the last query meets keys, with these; the farthest first."""
    last = [band for band in found.bands if band.start + len(band.first) == found.length]
    met = [(band, int(band.first[-1]), int(band.end[-1])) for band in last]
    return sorted((one for one in met if one[1] < one[2]), key=lambda one: one[1])


def angles(found: Rotation, distances: Sequence[int]) -> torch.Tensor:
    """Return the angle of every channel pair at each true distance in tokens, in radians.

    float64 ``(distances, pairs)``. Where positions are moved they are those of the last query, NaN
    where it does not meet the key.
    """
    apart = torch.tensor(distances, dtype=torch.float64)
    if not isinstance(found, Bands):
        return torch.outer(apart, frequencies_of(found).inv_freq.double())
    turned = torch.full((len(apart), len(found.frequencies.inv_freq)), torch.nan).double()
    keys = found.length - 1 - torch.tensor(distances)
    for band, first, end in _of_last(found):
        met = (keys >= first) & (keys < end)
        turned[met] = _turned(band, band.query[-1] - band.key[keys[met]])
    return turned


def strength(found: Rotation) -> float:
    """Return what multiplies a score: the attention factor squared, and the last query's scale."""
    scale = found.query_scale if isinstance(found, Bands) else None
    squared = frequencies_of(found).attention_factor ** 2
    return squared if scale is None else squared * float(scale[-1])


def decay(found: Rotation, distances: Sequence[int]) -> list[float]:
    """Return the upper bound of the attention score at each true distance in tokens.

    RoFormer, arXiv:2104.09864, section 3.4.3: the mean over j of abs(S_j), where S_j is the sum of
    e^(i * angle) over the j fastest pairs; at distance 0 it is (pairs + 1) / 2. It is multiplied
    by what multiplies the score. float64; NaN where the last query does not meet the key.
    """
    turned = angles(found, distances)
    sums = torch.polar(torch.ones_like(turned), turned).cumsum(dim=1)
    bounds: list[float] = (sums.abs().mean(dim=1) * strength(found)).tolist()
    return bounds
