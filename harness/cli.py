"""The command line: registers the commands, and turns errors into exit statuses."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter
from pydantic import ValidationError

from ropewalk.harness import show
from ropewalk.harness.commands.calibrate import calibrate
from ropewalk.harness.commands.check import check, doctor, inspect
from ropewalk.harness.commands.export import export
from ropewalk.harness.commands.list import list_
from ropewalk.harness.commands.recommend import recommend, tune
from ropewalk.harness.commands.report import compare, report
from ropewalk.harness.commands.run import run_sweep
from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.sweep.spec import mistakes

REFUSED, INTERRUPTED, UNREAD = 2, 130, 141  # exit statuses
# An option that lets a model's code run is not suggested for a word that resembles it.
UNSAFE = re.compile(r" Did you mean --(allow-pickle|trust-remote-code)\?")

app = App(
    name="ropewalk",
    version=lambda: version("ropewalk"),
    help="Measure how far a rotary language model reads past its trained window, and which scaling "
    "method carries it furthest.",
    group_parameters=Group("Options", sort_key=0),
    help_format="markdown",
    suppress_keyboard_interrupt=False,  # main reports what an interrupt keeps
    # A folder may be called [] or {"a": 1}, which is JSON.
    default_parameter=Parameter(
        json_list=False,
        json_dict=False,
        negative=(),
        consume_multiple=True,
        show_default=lambda value: " ".join(map(str, value)) if type(value) is tuple else value,
    ),
)
COMMANDS: dict[str, Callable[..., Any]] = {
    "run": run_sweep, "recommend": recommend, "tune": tune, "report": report, "compare": compare,
    "export": export, "inspect": inspect, "doctor": doctor, "calibrate": calibrate, "check": check,
    "list": list_,
}  # fmt: skip
for name, command in COMMANDS.items():
    command.__annotations__.pop("return", None)  # of a type that takes long to import
    app.command(command, name=name, alias="ls" if name == "list" else None)
app.register_install_completion_command(help="Install completion for the shell that runs this.")
app.meta.suppress_keyboard_interrupt = False
app.meta.group_parameters = Group.create_ordered("Output of every command")


@app.meta.default
def _call(
    *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Call a command and print what it returns.

    Args:
        json: Print the result as one JSON object, and nothing else, on stdout.
        quiet: Print only the result and errors.
    """
    show.begin(words, as_json=json, quiet=quiet)
    result = app(words, result_action="return_value", exit_on_error=False, print_error=False)
    return show.finish(result)


def main(words: Sequence[str] | None = None) -> Any:
    """Run the command line; a user's error is one sentence on stderr and exit status 2."""
    words = sys.argv[1:] if words is None else words
    for standard in ("stdin", "stdout", "stderr"):
        if getattr(sys, standard) is None:  # it is closed; the next file would take its number
            setattr(sys, standard, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that a terminal lacks becomes ?
    for name in (signal.SIGTERM, signal.SIGHUP):  # a batch system's end; a terminal that closes
        if name == signal.SIGTERM or signal.getsignal(name) == signal.SIG_DFL:  # nohup goes on
            signal.signal(name, signal.default_int_handler)
    try:
        status = app.meta(
            words, result_action="return_value", exit_on_error=False, print_error=False
        )
    except CycloptsError as error:
        cause, sentences = error.__cause__, [UNSAFE.sub("", str(error))]
        if isinstance(cause, ValidationError):
            sentences = mistakes(cause)
        status = show.failed(UserError(*sentences), REFUSED)
    except UserError as error:
        status = show.failed(error, REFUSED)
    except OSError as error:  # a reader that went away, as of cat; a full disk
        # Else Python would write the rest of the buffer again at the end.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        status = UNREAD if isinstance(error, BrokenPipeError) else REFUSED
        with suppress(OSError):
            if status == REFUSED:
                show.failed(UserError(f"{reason(error)}{_kept(error)}"), REFUSED)
    except KeyboardInterrupt as error:
        status = show.failed(UserError(f"Interrupted{_kept(error)}"), INTERRUPTED)
    sys.exit(status)


def _kept(error: BaseException) -> str:
    """Return the end of a sentence; if a command measured, it says what becomes of the samples."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ())) + "."
