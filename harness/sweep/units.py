"""Lengths and sizes as people write them: 4k tokens, 1.5x the window, 12GiB."""

from __future__ import annotations

import re
import reprlib
from fractions import Fraction

SHORT = reprlib.Repr()  # a file may nest lists within lists without end
SHORT.maxstring = SHORT.maxother = 200
SIZE = re.compile(r"([1-9][0-9]{0,17}(?:\.[0-9]{1,6})?) ?([KMGT]i?B|)")
UNITS = {
    "": 1,
    **{f"{prefix}B": 1000 ** (i + 1) for i, prefix in enumerate("KMGT")},
    **{f"{prefix}iB": 1024 ** (i + 1) for i, prefix in enumerate("KMGT")},
}
LENGTH = re.compile(r"(?=.*[1-9])([0-9]{1,12}(?:\.[0-9]{1,6}(?=[kKx]))?)([kKx]?)")


def size(text: str) -> int:
    """Return the bytes of 800MiB, 12GB or 4096; raise ValueError for any other text."""
    found = SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"{SHORT.repr(text)} is not a size; write 800MiB, 12GiB, 12GB or bytes")
    return int(Fraction(found[1]) * UNITS[found[2]])


def tokens(text: str, trained_length: int) -> int:
    """Return the tokens of 512, 4k or 1.5x, a part of one rounded.

    Raises ValueError for any other text.
    """
    found = LENGTH.fullmatch(text)
    if found is None:
        given = SHORT.repr(text)
        raise ValueError(
            f"{given} is not a length; write 512, 4k (4096), or 2x or 1.5x (of the window)"
        )
    unit = {"": 1, "k": 1024, "x": trained_length}
    return round(Fraction(found[1]) * unit[found[2].lower()])
