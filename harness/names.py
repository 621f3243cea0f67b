"""Names as they are given: never a control character, and a path only where one is meant."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UserError


def printable(text: str) -> str:
    """Return a name with what no terminal or table should meet written as an escape."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def place(text: str) -> Path:
    """Return a path with its ``~`` read; raise UserError where that is nobody's home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        message = f"{printable(text)}: there is no such home folder; write the path in full."
        raise UserError(message) from None
