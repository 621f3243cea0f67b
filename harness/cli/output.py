"""What every command writes: text or one JSON object on stdout, notes on stderr, and a log file."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ropewalk.harness.cli.console import Done, Lines, given, notes, screen
from ropewalk.harness.cli.settings import OUTPUT
from ropewalk.harness.errors import UserError, why

FLAGS = {
    "json": (bool, False, "Print the result as one JSON object, and nothing else, on stdout."),
    "quiet": (bool, False, "Print only the result and errors."),
    "log_file": (Path | None, None, "Add everything that is printed to this file, with times."),
}


def command(function: Callable[..., Done]) -> Callable[..., int]:
    """Give a command the flags of ``FLAGS``, and return its exit status."""
    signature = inspect.signature(function, eval_str=True)
    flags = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, Parameter(help=text, group=OUTPUT)],
        )
        for name, (kind, default, text) in FLAGS.items()
    ]

    @wraps(function)
    def call(
        *arguments: Any,
        json: bool = False,
        quiet: bool = False,
        log_file: Path | None = None,
        **options: Any,
    ) -> int:
        notes.quiet, screen.quiet = quiet, json
        if log_file is not None:
            _open_log(log_file)
        done = function(*arguments, **options)
        if json:
            _print_object(done.status, result=plain(done.result))
        return done.status

    parameters = [*signature.parameters.values(), *flags]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def plain(value: Any) -> Any:
    """Return a result as JSON has it: by pydantic, what is no finite number is null.

    An object has its fields, or the attributes that its ``JSON`` names; a table is its rows.
    """
    from pandas import DataFrame
    from pydantic_core import to_jsonable_python

    names = getattr(value, "JSON", None) or getattr(value, "_fields", ())
    if is_dataclass(value) or names:
        value = {name: getattr(value, name) for name in names or value.__dataclass_fields__}
    if isinstance(value, DataFrame):
        value = value.astype(object).to_dict("records")
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | Set):
        return [plain(part) for part in value]
    return to_jsonable_python(
        value,
        inf_nan_mode="null",
        fallback=lambda other: other.tolist() if hasattr(other, "tolist") else None,
    )


def _open_log(file: Path) -> None:
    try:
        Lines.file_log = file.open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--log-file {file} cannot be written: {why(error)}.") from None


@dataclass
class Current:
    """The command of this call, and whether it prints JSON."""

    command: str | None = None
    json: bool = False


current = Current()


def begin(words: Sequence[str]) -> None:
    """Forget what an earlier command of this process set."""
    given.clear()
    Lines.file_log, notes.quiet, screen.quiet = None, False, False
    current.command = words[0] if words else None
    current.json = "--json" in words  # also where the words that follow are wrong


def end() -> None:
    """Close the log."""
    if Lines.file_log is not None:
        Lines.file_log.close()
        Lines.file_log = None


def print_error(lines: Sequence[str], sentences: Sequence[str], status: int) -> None:
    """Print an error as the one JSON object of a command, where it prints JSON."""
    if current.json:
        error = {"message": "\n".join(lines), "problems": list(sentences)}
        _print_object(status, error=error)


def _print_object(status: int, **content: Any) -> None:
    from importlib.metadata import version

    screen.quiet = False
    head = {"ropewalk": version("ropewalk"), "command": current.command, "status": status}
    told = [note._asdict() for note in given]
    screen.raw(json.dumps({**head, "notes": told, **content}, allow_nan=False))
