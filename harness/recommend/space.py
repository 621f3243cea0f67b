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

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.plugins import entry, hints_of, load, module_of, parameters, split_options
from ropewalk.scaling import yarn
from ropewalk.scaling.types import Range, Rope

NUMBER = r"([-+]?\d*\.?\d+(?:e[-+]?\d+)?)"
RANGE = re.compile(rf"{NUMBER}\.\.{NUMBER}")
FREE = re.compile(r"channels|spline(?::knots=([456]))?")
WIDE = 10.0  # from this ratio on, a range that declares no scale has a logarithmic one
BEYOND = 2.0  # the slowest channel is divided by up to so many stretches (LongRoPE2's search)


@dataclass(frozen=True)
class Axis:
    """An option that is searched, and the ends between which it is."""

    name: str
    low: float
    high: float
    log: bool
    whole: bool

    def at(self, x: float) -> str:
        """Return the value at 0..1 of the axis, rounded to four digits, as people read it."""
        if self.log:
            value = self.low * (self.high / self.low) ** x
        else:
            value = self.low + (self.high - self.low) * x
        return f"{round(value) if self.whole else float(f'{value:.4g}'):.15g}"

    def place(self, value: float) -> float:
        """Return the place of a value on the axis, 0..1."""
        ends = self.low, self.high, min(max(value, self.low), self.high)
        low, high, value = map(math.log, ends) if self.log else ends
        return (value - low) / (high - low)

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
    module, _ = module_of("method", name)
    known = parameters(module, "method")
    hints = hints_of(entry(module, "method"))
    units = {"one": 1.0, "stretch": rope.stretch(length), "window": float(rope.trained_length)}
    axes, starts = list[Axis](), list[float]()
    for key in ranges or [option for option in known if option not in fixed]:
        kinds = [hints.get(key), *typing.get_args(hints.get(key))]
        declared = next((kind for kind in kinds if isinstance(kind, Range)), None)
        if ranges:
            low, high = map(float, ranges[key].groups())
            log = low > 0 and (declared.log if declared else high / low >= WIDE)
        elif declared:
            low, high = (end * units[declared.of] for end in (declared.low, declared.high))
            log = declared.log
            if key == "factor":  # it is 1 or more
                low, high = max(low, 1.0), max(high, 2.0)
        else:
            continue
        kinds += [part for kind in kinds for part in typing.get_args(kind)]
        whole = int in kinds and float not in kinds
        if whole:
            low, high = max(1.0, round(low)) if log else round(low), round(high)
        if not low < high < math.inf:
            raise UserError(
                f"{name}: {key}={options[key]} is no range; write {key}=LOW..HIGH, as in 8..64"
                f"{', whole numbers' if whole else ''}."
            )
        axes.append(Axis(key, low, high, log, whole))
        default = known[key].default if key in known else None
        starts.append(axes[-1].place(default) if isinstance(default, int | float) else 0.5)
    if not axes:
        raise UserError(
            f"{name} has no option with a range to search; write {name}:OPTION=LOW..HIGH, or name "
            "another method, such as yarn."
        )

    def method(x: Sequence[float], _: int) -> str:
        values = {axis.name: axis.at(at) for axis, at in zip(axes, x, strict=False)}
        return _named(name, fixed | values)

    text = f"{_named(name, fixed)}: {', '.join(map(str, axes))}"
    space = Space(text, tuple(starts), method)
    load("method", method(space.start, 0))  # which checks what is searched
    return space


def _named(name: str, options: dict[str, str]) -> str:
    listed = ",".join(f"{key}={text}" for key, text in options.items())
    return f"{name}:{listed}" if listed else name


def of_factors(given: str, rope: Rope, length: int, folder: Path) -> Space:
    """Return the space of ``spline:knots=5`` or of ``channels``, begun at YaRN's factors.

    The logarithm of the factor rises with the channel index, from 0 or more to at most that of two
    stretches. It is a monotone spline through 4 to 6 evenly spaced knots, or free at every channel,
    as LongRoPE searches. A point is written as a table of LongRoPE's factors into ``folder``.
    Raises UserError inside the trained window.
    """
    match, pairs = FREE.fullmatch(given), rope.rotary_dim // 2
    if match is None:
        raise UserError(f"{given} is invalid: write channels, spline, or spline:knots=4, 5 or 6.")
    knots = pairs if given == "channels" else min(int(match[1] or 5), pairs)
    if rope.stretch(length) == 1:
        raise UserError(
            f"{given} is searched beyond the trained window, {length} tokens are inside it."
        )
    most = math.log(BEYOND * rope.stretch(length))
    places = np.linspace(0, pairs - 1, knots)
    begin = yarn.frequencies(rope, length).inv_freq.clamp(min=1e-30)
    logs = np.log(np.maximum((rope.inv_freq() / begin).numpy(), 1.0))
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
