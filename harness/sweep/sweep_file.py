"""A sweep file: settings in YAML, with the line of each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UserError, foreign, why
from harness.files import read_regular
from harness.names import nearest

BUNDLED = (
    Path(__file__).parent.parent / "published" / "sweeps"
)  # sweeps of published settings, by name
LARGEST = 2**20  # bytes
DIGITS = 30  # characters of a number
MISREAD = re.compile(r"[-+]?0\d|.*:")  # octal and base 60, to YAML
Place = tuple[str | int, ...]  # a key, or a key and what follows below it


@dataclass(frozen=True)
class SweepFile:
    """The settings of a sweep file as YAML reads them, and the lines they were found on."""

    file: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    lines: dict[Place, int] = field(default_factory=dict)

    def where(self, place: Place) -> str:
        """Return "FILE, line N: " of the nearest known place, to begin a sentence with."""
        while place and place not in self.lines:
            place = place[:-1]
        line = f", line {self.lines[place]}" if place else ""
        return f"{self.file}{line}: " if self.file else ""


def bundled() -> dict[str, str]:
    """Return the sweeps that come with the program: by name, the first line of each."""
    files = sorted(BUNDLED.glob("*.yaml"))
    return {f.stem: f.read_text(encoding="utf-8").partition("\n")[0].strip("# ") for f in files}


def read_sheet(given: Path) -> SweepFile:
    """Read a sweep file, or the bundled one of this name; raise UserError for any other content."""
    file = _place(given)
    if file.suffix == ".py":
        raise UserError(
            f"{file} is code, not a sweep file; name it as --scaling {file} or --task {file}."
        )
    try:
        content = read_regular(file, limit=LARGEST)
    except FileNotFoundError:
        raise UserError(f"sweep file {file} does not exist{_meant(given)}.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"sweep file {file} cannot be read: {why(error)}.") from None
    return _parsed(file, content)


def _place(given: Path) -> Path:
    named = BUNDLED / f"{given}.yaml"
    own = given.suffix or len(given.parts) != 1 or given.exists()
    return named if not own and named.exists() else given


def _meant(given: Path) -> str:
    """Return which bundled sweeps there are, where a name was given rather than a file."""
    return "" if given.suffix else f"; of the bundled sweeps, {nearest(str(given), bundled())}"


def _parsed(file: Path, content: bytes) -> SweepFile:
    with foreign(f"sweep file {file} is not YAML"):
        loader = yaml.SafeLoader(content.decode("utf-8-sig"))
        node = loader.get_single_node()
        if node is not None:
            _check_scalars(file, node)
        read = loader.construct_document(node) if node is not None else None
    if not isinstance(read, dict) or not isinstance(node, yaml.MappingNode):
        raise UserError(f"sweep file {file} must hold settings (model: …, scaling: […], …).")
    sheet = SweepFile(file, {str(key): value for key, value in read.items()}, {})
    for key, value in node.value:
        _note(sheet, (str(key.value),), key)
        parts = value.value if isinstance(value.value, list) else ()
        for index, part in enumerate(parts):
            below, place = (part[0], part[0].value) if isinstance(part, tuple) else (part, index)
            _note(sheet, (str(key.value), place), below)
    return sheet


def _check_scalars(file: Path, node: yaml.Node) -> None:
    """Reject, before it is computed, what YAML reads as more than a person does, or differently.

    010 is 8 to it and 1:30 is 90; numbers of a million digits and merges of merges take for ever.
    """
    waiting, seen = [node], {id(node)}
    while waiting:
        node = waiting.pop()
        told = _misread(node)
        if told:
            raise UserError(f"{file}, line {node.start_mark.line + 1}: {told}.")
        parts = node.value if isinstance(node.value, list) else []
        found = [n for part in parts for n in (part if isinstance(part, tuple) else (part,))]
        waiting += [n for n in found if id(n) not in seen]  # a file may hold itself, by an anchor
        seen |= set(map(id, found))


def _misread(node: yaml.Node) -> str:
    kind = node.tag.rpartition(":")[2]
    if kind in ("int", "float") and len(node.value) > DIGITS:
        return f"a number of {len(node.value):,} characters; at most {DIGITS} are read"
    if kind == "int" and MISREAD.match(node.value):
        return f"{node.value} is another number in YAML; write it plain"
    return "merges (<<) are not read; write the settings out" if kind == "merge" else ""


def _note(sheet: SweepFile, place: Place, node: yaml.Node) -> None:
    """Note the line of a place; raise UserError for a key that was there before."""
    if not all(isinstance(part, str | int) for part in place):
        return  # a key that is no word: the validation says so
    if place in sheet.lines:
        first = sheet.lines[place]
        line = node.start_mark.line + 1
        raise UserError(f"{sheet.file}, line {line}: {place[-1]} is on line {first} too; keep one.")
    sheet.lines[place] = node.start_mark.line + 1
