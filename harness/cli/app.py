"""Define the command line. Commands import heavy modules themselves, so that help is instant."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from inspect import signature
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError, UnusedCliTokensError
from rich.text import Text

from harness.cli.check import check
from harness.cli.compare import compare
from harness.cli.console import INTERRUPTED, REFUSED, err, terminable
from harness.cli.doctor import doctor
from harness.cli.export import export
from harness.cli.inspect import inspect
from harness.cli.list import list_
from harness.cli.new import new
from harness.cli.publish import publish
from harness.cli.report import report
from harness.cli.rerun import rerun
from harness.errors import UserError, reason
from harness.names import printable


def _version() -> str:
    from importlib.metadata import version  # takes a fifth of the time to start

    return version("ropewalk")


def _mistaken(error: CycloptsError) -> str:
    """Return what is wrong with a command line; for another command's option, name the command."""
    told = str(error)
    if isinstance(error, UnusedCliTokensError):
        asked = " ".join(error.command_chain or ())
        told = (
            f"{asked} has no place for {' '.join(error.unused_tokens or ())!r}; name the flag that "
            f"it belongs to, as in --docs books (see {asked} --help)."
        )
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or str(error.token.value)).partition("=")[0]
        for name in (*LAZY, *COMMANDS):
            command = app[name].default_command
            parameters = signature(command).parameters if command else {}
            if option.removeprefix("--").replace("-", "_") in parameters:
                told = (
                    f"Unknown option: {option}. It is one of ropewalk {name} (see {name} --help)."
                )
    return told


COMMANDS = {
    command.__name__.strip("_"): command
    for command in (report, publish, compare, rerun, inspect, export, doctor, check, list_, new)
}
app = App(
    name="ropewalk",
    version=_version,
    help="Measure how far a rotary language model reads past its trained window, and which "
    "scaling method carries it furthest.",
    help_format="plaintext",  # markdown would take twice the time to start
    suppress_keyboard_interrupt=False,  # main reports what an interrupt keeps
    # A folder may be called [] or {"a": 1}, which is JSON.
    default_parameter=Parameter(json_list=False, json_dict=False),
)
LAZY = {
    "run": "Run a sweep: every scaling x task x length. The same command continues where it "
    "stopped.",
    "tune": "Search a method's options, or free factors of its channels, by CMA-ES at one length.",
    "recommend": "Name the method for a target length, by a race on your documents.",
}
# Their flags are the settings of a sweep, whose module takes half a second: loaded when named.
for name, told in LAZY.items():
    app.command(f"harness.cli.{name}:{name}", name=name, help=told)
for name, command in COMMANDS.items():
    app.command(command, name=name)


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a user's error is one sentence on stderr and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal lacks becomes ?
    try:
        with terminable():
            status = app(
                arguments, result_action="return_value", exit_on_error=False, print_error=False
            )
    except CycloptsError as error:
        status = _refused(_mistaken(error))
    except UserError as error:
        status = _refused(str(error))
    except OSError as error:  # of stdout or stderr: a log on a full disk, a closed terminal
        # Else Python would write the rest of the buffer again at the end.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        with suppress(OSError):
            _refused(f"{reason(error)}{_kept(error)}")
        status = REFUSED
    except KeyboardInterrupt as error:
        err.print(f"Interrupted{_kept(error)}")
        status = INTERRUPTED
    sys.exit(status)


def _kept(error: BaseException) -> str:
    """Return how a sentence ends: of a command that measured, with what becomes of that."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ())) + "."


def _refused(told: str) -> int:
    told = printable(told)  # it may quote a file that came from anyone
    err.print(Text.assemble(("ropewalk:", "bold red"), f" {told}"), soft_wrap=True)
    return REFUSED
