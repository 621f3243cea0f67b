"""Free factors: every channel divided by a number of its own, never less than a faster one's."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from harness.errors import UserError
from harness.files import make_folder, replacing
from harness.names import nearest
from harness.plugins import split_options
from harness.select.space import Space
from scaling.types import Frequencies, Rope

FREE = ("spline", "channels")
FEWEST, MOST = 4, 6  # knots of a spline
BEYOND = 2.0  # the slowest channel is divided by up to so many stretches (LongRoPE2's search)
Array = NDArray[np.float64]


def is_free(given: str) -> bool:
    """Return whether a name is one of free factors, not a method's."""
    return given.partition(":")[0] in FREE


def of_factors(given: str, rope: Rope, length: int, begin: Frequencies, folder: Path) -> Space:
    """Return the space of ``spline:knots=5`` or of ``channels``, begun at a method's frequencies.

    The logarithm of the factor rises with the channel index from 0 or more to at most that of two
    stretches: through 4 to 6 knots, evenly spaced, by a monotone spline; or at every channel, as
    LongRoPE searches. A point is written as a table of LongRoPE's factors into ``folder``.
    """
    pairs = rope.rotary_dim // 2
    knots = _knots(given, pairs)
    most = math.log(BEYOND * rope.stretch(length))
    if most <= math.log(BEYOND):
        raise UserError(
            f"{given} is searched beyond the trained window, {length} tokens are inside it."
        )
    places = np.linspace(0, pairs - 1, knots)
    logs = np.log(np.maximum((rope.inv_freq() / begin.inv_freq.clamp(min=1e-30)).numpy(), 1.0))
    start = broken(np.interp(places, np.arange(pairs), logs) / most)

    def method(x: Sequence[float], number: int) -> str:
        rises = PchipInterpolator(places, most * joined(x[:knots]))(np.arange(pairs))
        return written([float(f"{value:.6g}") for value in np.exp(rises)], folder, number)

    told = f"{given}: {knots} numbers, the factors of {pairs} channels, 1 to {math.exp(most):.4g}"
    return Space(told, start, method)


def joined(x: Sequence[float]) -> Array:
    """Return rising shares 0..1 of independent numbers 0..1: each takes a part of what is left."""
    return 1 - np.cumprod(1 - np.asarray(x, dtype=float))


def broken(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the numbers that ``joined`` makes these rising shares of."""
    left = 1 - np.clip(np.maximum.accumulate(np.asarray(shares, dtype=float)), 0, 0.99)
    return tuple((1 - left / np.concatenate(([1.0], left[:-1]))).tolist())


def written(factors: Sequence[float], folder: Path, number: int) -> str:
    """Write a trial's table, and return its path."""
    make_folder(folder, "folder of factors")
    path = folder / f"trial_{number:03}.json"
    with replacing(path) as new:
        new.write(table(factors))
    return str(path)


def table(factors: Sequence[float]) -> bytes:
    """Return LongRoPE's two lists: the model itself in its window, these factors beyond it."""
    lists = {"short_factor": [1.0] * len(factors), "long_factor": list(factors)}
    return json.dumps(lists).encode()


def _knots(given: str, pairs: int) -> int:
    """Return how many numbers are searched."""
    name, _, listed = given.partition(":")
    options = split_options(name, listed)
    for key in options.keys() - ({"knots"} if name == "spline" else set()):
        raise UserError(
            f"{name} has no option {key!r}; {nearest(key, ['knots'] * (name == 'spline'))}."
        )
    if name == "channels":
        return pairs
    told = options.get("knots", "5")
    if not (told.isdecimal() and FEWEST <= int(told) <= MOST):
        raise UserError(f"spline: knots={told} should be {FEWEST} to {MOST}.")
    return min(int(told), pairs)
