"""Grids of options: ``yarn:factor=[4,8]`` is ``yarn:factor=4`` and ``yarn:factor=8``."""

from __future__ import annotations

import re
from itertools import product
from math import prod

MOST = 1000  # entries of one grid
PART = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\])?[^,\[\]]*")  # up to a comma outside of brackets
SEVERAL = re.compile(r"\btasks=([^,\[\]]*\+[^,\[\]]*)")
LISTED = re.compile(r"([^=\[\]]+)=\s*\[([^\[\]]*)\]\s*")


def expand(entry: str) -> list[str]:
    """Return every entry of a grid, the last option varying fastest.

    ``tasks=a+b`` is ``tasks=[a,b]``. Raises ValueError where brackets do not close, or hold
    nothing.
    """
    name, colon, options = entry.partition(":")
    options = SEVERAL.sub(lambda found: f"tasks=[{found[1].replace('+', ',')}]", options)
    if not set("[]") & set(options):
        return [entry]
    choices = [_choices(entry, part) for part in _parts(entry, options)]
    if prod(map(len, choices)) > MOST:
        raise ValueError(f"{entry!r} is more than {MOST} entries")
    return [f"{name}{colon}{','.join(chosen)}" for chosen in product(*choices)]


def _parts(entry: str, options: str) -> list[str]:
    parts, place = [], 0
    while place <= len(options):
        found = PART.match(options, place)
        end = found.end() if found else place
        if end < len(options) and options[end] != ",":
            raise ValueError(f"the brackets of {entry!r} do not close; write option=[1,2]")
        parts.append(options[place:end])
        place = end + 1
    return parts


def _choices(entry: str, part: str) -> list[str]:
    if "[" not in part:
        return [part]
    listed = LISTED.fullmatch(part)
    values = [value.strip() for value in listed[2].split(",")] if listed else []
    if listed is None or not all(values):
        raise ValueError(f"{part!r} in {entry!r} is not a list of values; write option=[1,2]")
    return [f"{listed[1].strip()}={value}" for value in values]
