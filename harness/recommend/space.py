"""What ``tune`` searches: a cube of numbers, and the method at each of its points.

The numbers are options of a method, or free factors by which the channels are divided.
"""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.names import nearest
from ropewalk.harness.plugins import entry, load, module_of, parameters, split_options
from ropewalk.scaling.types import Frequencies, Range, Rope

RANGE = re.compile(r"([-+.\de]+?)\.\.([-+.\de]+)")
WIDE = 10.0  # from this ratio on, a range that declares no scale has a logarithmic one
FREE = ("spline", "channels")
BEYOND = 2.0  # the slowest channel is divided by up to so many stretches (LongRoPE2's search)


@dataclass(frozen=True)
class Axis:
    """One number that is searched: its name, its ends, and where the search begins."""

    name: str
    low: float
    high: float
    log: bool
    whole: bool
    start: float

    def at(self, x: float) -> float:
        """Return the value at 0..1 of the axis, rounded to four digits, as people read it."""
        if self.log:
            value = self.low * (self.high / self.low) ** x
        else:
            value = self.low + (self.high - self.low) * x
        return round(value) if self.whole else float(f"{value:.4g}")

    @property
    def begin(self) -> float:
        """The start on the axis, 0..1."""
        ends = (self.low, self.high, min(max(self.start, self.low), self.high))
        low, high, start = map(math.log, ends) if self.log else ends
        return (start - low) / (high - low)

    def __str__(self) -> str:
        return f"{self.name}={self.low:.4g}..{self.high:.4g}{' (log)' if self.log else ''}"


@dataclass(frozen=True)
class Space:
    """A cube of numbers: where the search begins in it, and the method at each of its points.

    ``method`` takes a point and the number of the trial, and returns what ``--scaling`` takes.
    """

    text: str
    start: tuple[float, ...]
    method: Callable[[Sequence[float], int], str]


def closed_form(given: str) -> str:
    """Return the method that is searched with the searched options at their defaults."""
    name, _, listed = given.partition(":")
    options = split_options(f"method {name}", listed)
    return _named(name, {key: text for key, text in options.items() if not RANGE.fullmatch(text)})


def of_options(given: str, rope: Rope, length: int) -> Space:
    """Return the space of a method's options: ``yarn``, or ``yarn:beta_fast=8..64,factor=4``.

    Options given as LOW..HIGH are searched, else all that declare a range (``Range`` in
    their annotation); one that is given a value keeps it. Raises UserError where nothing is left
    to search.
    """
    name, _, listed = given.partition(":")
    options = split_options(f"method {name}", listed)
    ranges = {key: match for key, text in options.items() if (match := RANGE.fullmatch(text))}
    fixed = {key: text for key, text in options.items() if key not in ranges}
    load("method", closed_form(given))  # which checks all names and values
    module, _ = module_of("method", name)
    known = {key: parameter.default for key, parameter in parameters(module, "method").items()}
    for key in ranges.keys() - known.keys():
        raise UserError(f"{name} has no option {key!r}; {nearest(key, known)}.")
    hints = typing.get_type_hints(entry(module, "method"), include_extras=True)
    units = {"one": 1.0, "stretch": rope.stretch(length), "window": float(rope.trained_length)}
    axes = []
    for key in ranges or [option for option in known if option not in fixed]:
        parts = typing.get_args(hints[key])
        declared = next((part for part in parts if isinstance(part, Range)), None)
        if ranges:
            searched = _range(name, key, ranges[key], declared)
        elif declared:
            low, high = declared.low * units[declared.of], declared.high * units[declared.of]
            if key == "factor":  # it is 1 or more
                low, high = max(low, 1.0), max(high, 2.0)
            searched = Range(low, high, log=declared.log)
        else:
            continue
        axes.append(_axis(name, key, searched, hints[key], known[key]))
    if not axes:
        raise UserError(
            f"{name} has no option with a range to search; write {name}:OPTION=LOW..HIGH, or name "
            "another method, such as yarn."
        )

    def method(x: Sequence[float], _: int) -> str:
        values = {axis.name: f"{axis.at(at):.15g}" for axis, at in zip(axes, x, strict=False)}
        return _named(name, fixed | values)

    text = f"{closed_form(given)}: {', '.join(map(str, axes))}"
    return Space(text, tuple(axis.begin for axis in axes), method)


def _named(name: str, options: dict[str, str]) -> str:
    listed = ",".join(f"{key}={text}" for key, text in options.items())
    return f"{name}:{listed}" if listed else name


def _range(name: str, key: str, match: re.Match[str], declared: Range | None) -> Range:
    """Return the range that a user wrote, on the scale that the option declares."""
    try:
        low, high = float(match[1]), float(match[2])
    except ValueError:
        low, high = 0.0, 0.0
    if not (math.isfinite(high - low) and (1 if key == "factor" else -math.inf) <= low < high):
        raise UserError(
            f"{name}: {key}={match[0]} is no range; write {key}=LOW..HIGH, as in 8..64. A factor "
            "is 1 or more."
        )
    log = declared.log if declared else low > 0 and high / low >= WIDE
    return Range(low, high, log=log and low > 0)


def _axis(name: str, key: str, searched: Range, hint: Any, default: Any) -> Axis:
    kinds = {hint, *typing.get_args(hint)}
    kinds |= {part for kind in kinds for part in typing.get_args(kind)}
    if not kinds & {int, float}:
        raise UserError(f"{name}: {key} is no number and cannot be searched; give it a value.")
    low, high, whole = searched.low, searched.high, float not in kinds
    if whole:
        low, high = max(1.0, round(low)) if searched.log else float(round(low)), float(round(high))
        if low >= high:
            raise UserError(
                f"{name}: {key} is whole, and {searched.low:g}..{searched.high:g} holds one value."
            )
    middle = math.sqrt(low * high) if searched.log else (low + high) / 2
    start = float(default) if isinstance(default, int | float) else middle
    return Axis(key, low, high, searched.log, whole, start)


def is_free(given: str) -> bool:
    """Return whether free factors are searched, not a method's options."""
    return given.partition(":")[0] in FREE


def of_factors(given: str, rope: Rope, length: int, begin: Frequencies, folder: Path) -> Space:
    """Return the space of ``spline:knots=5`` or of ``channels``, begun at a method's frequencies.

    The logarithm of the factor rises with the channel index, from 0 or more to at most that of two
    stretches. It is a monotone spline through 4 to 6 evenly spaced knots, or free at every channel,
    as LongRoPE searches. A point is written as a table of LongRoPE's factors into ``folder``.
    Raises UserError inside the trained window.
    """
    pairs = rope.rotary_dim // 2
    knots = _knots(given, pairs)
    if rope.stretch(length) == 1:
        raise UserError(
            f"{given} is searched beyond the trained window, {length} tokens are inside it."
        )
    most = math.log(BEYOND * rope.stretch(length))
    places = np.linspace(0, pairs - 1, knots)
    logs = np.log(np.maximum((rope.inv_freq() / begin.inv_freq.clamp(min=1e-30)).numpy(), 1.0))
    start = independent(np.interp(places, np.arange(pairs), logs) / most)

    def method(x: Sequence[float], number: int) -> str:
        logs = PchipInterpolator(places, most * rising(x[:knots]))(np.arange(pairs))
        factors = [float(f"{value:.6g}") for value in np.exp(logs)]
        make_folder(folder, "folder of factors")
        path = folder / f"trial_{number:03}.json"
        with replacing(path) as new:  # the model itself in its window, these factors beyond it
            table = {"short_factor": [1.0] * pairs, "long_factor": factors}
            new.write(json.dumps(table).encode())
        return str(path)

    text = f"{given}: {knots} numbers, the factors of {pairs} channels, 1 to {math.exp(most):.4g}"
    return Space(text, start, method)


def rising(x: Sequence[float]) -> NDArray[np.float64]:
    """Return rising shares 0..1 of independent numbers 0..1: each takes a part of what is left."""
    return 1 - np.cumprod(1 - np.asarray(x, dtype=float))


def independent(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the numbers from which ``rising`` makes these shares."""
    left = 1 - np.clip(np.maximum.accumulate(np.asarray(shares, dtype=float)), 0, 0.99)
    return tuple((1 - left / np.concatenate(([1.0], left[:-1]))).tolist())


def _knots(given: str, pairs: int) -> int:
    """Return how many numbers are searched."""
    name, _, listed = given.partition(":")
    options = split_options(name, listed)
    text = options.pop("knots", "5") if name == "spline" else str(pairs)
    if options:
        raise UserError(
            f"{name} has no option {next(iter(options))!r}; only spline has knots=4..6."
        )
    if name == "spline" and text not in ("4", "5", "6"):
        raise UserError(f"spline: knots={text} should be 4 to 6.")
    return min(int(text), pairs)
