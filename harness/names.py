"""Names as they are given: printable, paths only where one is meant, and the nearest known."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from glob import has_magic
from pathlib import Path

from ropewalk.harness.errors import UserError


def printable(text: str) -> str:
    """Return a name with unprintable characters written as escapes."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def article(kind: str) -> str:
    """Return a word after "a" or "an"."""
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def tensors(names: Sequence[str]) -> str:
    """Return "the tensor a.weight", or "4 tensors (a.weight, b.weight, c.weight, …)"."""
    several = ", ".join([*names[:3], "…"] if len(names) > 3 else names)
    return f"{len(names)} tensors ({several})" if len(names) > 1 else f"the tensor {names[0]}"


def is_dotted(name: str) -> bool:
    """Return whether a name is that of a Python module, as ``package.module``, and not a path."""
    return "." in name and all(part.isidentifier() for part in name.split("."))


def place(text: str) -> Path:
    """Return a path with its ``~`` expanded; raise UserError where no such user exists."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(
            f"{printable(text)}: there is no such home folder; write the path in full."
        ) from None


def is_path(path: Path) -> bool:
    """Return whether a file or a folder exists; what cannot be a name is none."""
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or a zero byte in it
        return False


def recorded(name: str) -> str:
    """Return what a record holds of a name: of a file, a folder or a glob, only its last part."""
    path = Path(name)
    if name and (name[0] in "./~" or has_magic(name) or is_path(path)):
        return Path(os.path.normpath(path.absolute())).name
    return name


def recorded_entry(text: str) -> str:
    """Return what a record holds of NAME:option=value,…, none of whose names has a folder."""
    name, colon, listed = text.partition(":")
    parts = (part.partition("=") for part in listed.split(","))
    options = ",".join(f"{key}{equals}{recorded(value)}" for key, equals, value in parts)
    return f"{recorded(name)}{colon}{options}"


def resolved(path: Path) -> Path:
    """Return an absolute path without symbolic links; those of a loop stay."""
    return Path(os.path.realpath(path))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the words allowed, and the one probably meant."""
    allowed = sorted(known)
    parts = [known for known in allowed if f"_{known}_" in f"_{word}_"]  # dynamic_yarn: yarn
    close = sorted(parts, key=len, reverse=True)
    close = close or difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    close = close or [name for name in allowed if word and _shortens(word, name)]
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(allowed) or 'none'}"


def _shortens(word: str, name: str) -> bool:
    """Return whether a word has some of a name's letters in their order: ppl for perplexity."""
    letters = iter(name)
    return word[0] == name[0] and all(letter in letters for letter in word)
