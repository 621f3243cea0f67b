"""Compute what a method does to the channel pairs of a rotary embedding, without a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from ropewalk.scaling.types import Rope, Rotation

Change = Literal["unchanged", "in part", "in full", "beyond", "faster"]
# Two float32 frequencies that differ by less, relatively, are one: an exponent that is rounded to
# eps moves base ** exponent by ln(base) times that, and float32 holds no base above its maximum.
FLOAT32 = torch.finfo(torch.float32)
ROUNDING = math.log(FLOAT32.max) * FLOAT32.eps  # about 1e-5
SHOWN = 5  # layers, from the first to the last, of a method that gives each its own


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


def shown(label: str, rotation: Rotation) -> list[tuple[str, Rotation]]:
    """Return a rotation by its displayed name; for per-layer frequencies, some of the layers."""
    if not rotation.per_layer:
        return [(label, rotation)]
    layers = rotation.frequency_sets()
    last = len(layers) - 1
    places = sorted({round(last * step / (SHOWN - 1)) for step in range(SHOWN)})
    return [(f"{label} in layer {at + 1}", layers[at]) for at in places]


def channels(rope: Rope, rotation: Rotation, length: int) -> tuple[Channel, ...]:
    """Return every channel pair, fastest first; of bands as the last query meets its farthest key.

    A pair that turned fully in training saw every angle. One that did not has unseen angles where
    its largest, over all bands, exceeds that of the trained window.
    """
    new, largest = rotation.farthest.inv_freq, rotation.largest_angles(length)
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
