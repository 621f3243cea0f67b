"""Define the command line. Commands import heavy modules themselves: help needs none of them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from cyclopts import (
    App,
    CycloptsError,
    Parameter,
    UnknownCommandError,
    UnusedCliTokensError,
)
from rich.text import Text

from ropewalk.harness.cli import COMMANDS
from ropewalk.harness.cli.console import INTERRUPTED, REFUSED, Notes, err, terminable
from ropewalk.harness.cli.output import begin, end, print_error
from ropewalk.harness.cli.settings import OPTIONS
from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.names import printable


def _version() -> str:
    from importlib.metadata import version  # takes a fifth of the time to start

    return version("ropewalk")


def _mistaken(error: CycloptsError) -> str:
    """Return what is wrong with a command line, and what to write instead where that is known."""
    command = " ".join(error.command_chain or ())
    if isinstance(error, UnusedCliTokensError):
        return (
            f"{command} has no place for {' '.join(error.unused_tokens or ())!r}; name the flag "
            f"that it belongs to, as in --docs books, which takes one value (see {command} --help)."
        )
    if isinstance(error, UnknownCommandError):
        words = error.unused_tokens or [""]
        if words[0].startswith("-"):
            return f"name a command first: ropewalk run {' '.join(words)}"
    return str(error)


app = App(
    name="ropewalk",
    version=_version,
    help="Measure how far a rotary language model reads past its trained window, and which scaling "
    "method carries it furthest.",
    group_parameters=OPTIONS,
    help_format="plaintext",  # markdown would take twice the time to start
    suppress_keyboard_interrupt=False,  # main reports what an interrupt keeps
    # A folder may be called [] or {"a": 1}, which is JSON.
    default_parameter=Parameter(
        json_list=False, json_dict=False, negative="", consume_multiple=True
    ),
)
for name in COMMANDS:
    module = import_module(f"ropewalk.harness.cli.{name}")
    if name == "list":  # not the built-in
        app.command(module.list_, name=("list", "ls"))
    else:
        app.command(getattr(module, name))
app.register_install_completion_command(help="Install completion for the shell that runs this.")


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a user's error is one sentence on stderr and exit status 2."""
    given = sys.argv[1:] if arguments is None else arguments
    begin(given)
    log = logging.getLogger("ropewalk")
    log.setLevel(logging.INFO)
    log.handlers = [Notes()]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal lacks becomes ?
    try:
        with terminable():
            status = app(
                given, result_action="return_value", exit_on_error=False, print_error=False
            )
    except CycloptsError as error:
        status = _refused(_mistaken(error))
    except UserError as error:
        status = _refused(*getattr(error, "lines", [str(error)]), sentences=error.sentences)
    except OSError as error:  # of stdout or stderr: a log on a full disk, a closed terminal
        # Else Python would write the rest of the buffer again at the end.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        with suppress(OSError):
            _refused(f"{reason(error)}{_kept(error)}")
        status = REFUSED
    except KeyboardInterrupt as error:
        text, status = f"Interrupted{_kept(error)}", INTERRUPTED
        err.print(text)
        print_error([text], [text], status)
    end()
    sys.exit(status)


def _kept(error: BaseException) -> str:
    """Return the end of a sentence; if a command measured, it says what becomes of the samples."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ())) + "."


def _refused(*lines: str, sentences: Sequence[str] = ()) -> int:
    text = "\n".join(map(printable, lines))  # they may quote a file that came from anyone
    err.print(Text.assemble(("ropewalk:", "bold red"), f" {text}"), soft_wrap=True)
    print_error(lines, sentences or lines, REFUSED)
    return REFUSED
