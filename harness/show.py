"""Print what a command returns on stdout, its text or JSON; notes and errors on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, is_dataclass
from importlib.metadata import version
from typing import Any

from rich.text import Text

from ropewalk.harness.errors import UserError, printable
from ropewalk.harness.sweep.progress import console as err

log = logging.getLogger("ropewalk")
if not err.is_terminal:
    err.width = 120  # columns, where no terminal tells


@dataclass
class Output:
    """How this call of the command line prints."""

    command: str | None = None
    as_json: bool = False
    notes: list[dict[str, Any]] = field(default_factory=list)


current = Output()


class Notes(logging.Handler):
    """Prints notes on stderr, with ``--quiet`` only errors, and keeps them for ``--json``."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a note; a warning is marked."""
        warning = record.levelno == logging.WARNING
        text = printable(record.getMessage())
        current.notes.append({"text": text, "warning": record.levelno >= logging.WARNING})
        style = "" if record.levelno == logging.INFO else "bold yellow" if warning else "bold"
        quiet, err.quiet = err.quiet, err.quiet and record.levelno < logging.ERROR
        err.print(Text(f"Warning: {text}" if warning else text, style), soft_wrap=True)
        err.quiet = quiet


def begin(words: Sequence[str], *, as_json: bool, quiet: bool) -> None:
    """Set up the output of one command."""
    global current
    current = Output(words[0] if words else None, as_json)
    err.quiet = quiet
    log.setLevel(logging.INFO)
    log.handlers = [Notes()]


def finish(result: Any) -> int:
    """Print what a command returned, and return its exit status."""
    status: int = getattr(result, "status", 0)
    if current.as_json:
        _print_json(status, result=plain(result))
    elif result is not None:
        several = type(result) is list
        text = "\n\n".join(map(str, result)) if several else str(result)
        print(printable_lines(text))  # noqa: T201
    sys.stdout.flush()  # else a reader that went away is seen when Python ends
    return status


def failed(error: UserError, status: int) -> int:
    """Print an error and return its status: a sentence on stderr, with ``--json`` an object too."""
    err.quiet = False
    text = printable_lines(str(error))
    if status == 2:
        err.print(Text.assemble(("ropewalk:", "bold red"), f" {text}"), soft_wrap=True)
    else:
        err.print(text, soft_wrap=True)
    if current.as_json:
        _print_json(status, error={"message": str(error), "problems": list(error.sentences)})
    return status


def printable_lines(text: str) -> str:
    """Return a text whose lines have no control characters."""
    return "\n".join(map(printable, text.split("\n")))


def _print_json(status: int, **content: Any) -> None:
    head = {"ropewalk": version("ropewalk"), "command": current.command, "status": status}
    print(json.dumps({**head, "notes": current.notes, **content}, allow_nan=False))  # noqa: T201


def plain(value: Any) -> Any:
    """Return a result as JSON has it: by pydantic, what is no finite number is null.

    An object has its fields, or the attributes that its ``JSON`` names; a table is its rows.
    """
    names = getattr(value, "JSON", None) or getattr(value, "_fields", ())
    if is_dataclass(value) or names:
        value = {name: getattr(value, name) for name in names or value.__dataclass_fields__}
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        value = value.astype(object).to_dict("records")
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | AbstractSet):
        return [plain(part) for part in value]
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(
        value,
        inf_nan_mode="null",
        fallback=lambda other: other.tolist() if hasattr(other, "tolist") else None,
    )
