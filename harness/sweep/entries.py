"""What a setting may say: lengths, and names with options and grids of options."""

from __future__ import annotations

import re
import reprlib
from fractions import Fraction
from itertools import product
from math import prod
from pathlib import Path

from ropewalk.harness.files import is_path

MOST = 1000  # entries of one grid
# A comma outside of brackets behind which another entry begins: a name, and no option=value.
NEXT = re.compile(r",\s*(?=[A-Za-z_.~/][^=,\[\]]*(?:[:,]|$))(?![^\[\]]*\])")
OUTSIDE = re.compile(r",(?![^\[\]]*\])")  # a comma outside of brackets
BRACKETS = re.compile(r"\[[^\[\]]*\]")
SEVERAL = re.compile(r"\btasks=([^,\[\]]*\+[^,\[\]]*)")
LISTED = re.compile(r"([^=\[\]]+)=\s*\[([^\[\]]*)\]\s*")
SHORT = reprlib.Repr()  # a file may nest lists within lists without end
SHORT.maxstring = SHORT.maxother = 200
LENGTH = re.compile(r"(?=.*[1-9])([0-9]{1,12}(?:\.[0-9]{1,6}(?=[kKx]))?)([kKx]?)")


def tokens(text: str, trained_length: int) -> int:
    """Return the tokens of 512, 4k or 1.5x, a part of one rounded.

    Raises ValueError for any other text.
    """
    match = LENGTH.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{SHORT.repr(text)} is not a length; write 512, 4k (4096), or 2x or 1.5x (of the"
            " window)"
        )
    unit = {"": 1, "k": 1024, "x": trained_length}
    return round(Fraction(match[1]) * unit[match[2].lower()])


def expand(entry: str) -> list[str]:
    """Return every entry of a list of names and of grids, the last option varying fastest.

    ``none,yarn`` is two entries, unless a file has that name; ``tasks=a+b`` is ``tasks=[a,b]``.
    Raises ValueError where brackets do not close, or hold nothing.
    """
    names = [entry] if is_path(Path(entry.partition(":")[0])) else NEXT.split(entry)
    return [expanded for name in names for expanded in _grid(name)]


def _grid(entry: str) -> list[str]:
    name, colon, options = entry.partition(":")
    options = SEVERAL.sub(lambda match: f"tasks=[{match[1].replace('+', ',')}]", options)
    if not set("[]") & set(options):
        return [entry]
    if set("[]") & set(BRACKETS.sub("", options)):
        raise ValueError(f"the brackets of {entry!r} do not close; write option=[1,2]")
    choices = []
    for part in OUTSIDE.split(options):
        listed = LISTED.fullmatch(part)
        values = [value.strip() for value in listed[2].split(",")] if listed else []
        if "[" in part and not (listed and all(values)):
            raise ValueError(f"{part!r} in {entry!r} is not a list of values; write option=[1,2]")
        choices.append([f"{listed[1].strip()}={v}" for v in values] if listed else [part])
    if prod(map(len, choices)) > MOST:
        raise ValueError(f"{entry!r} is more than {MOST} entries")
    return [f"{name}{colon}{','.join(chosen)}" for chosen in product(*choices)]
