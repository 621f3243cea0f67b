"""Define the command line. Commands import heavy modules themselves, so that help is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from cyclopts import (
    App,
    CycloptsError,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)
from rich.text import Text

from harness.cli import COMMANDS, EXAMPLES, HELP, USAGE
from harness.cli.console import COMPLETE, INTERRUPTED, REFUSED, err, terminable
from harness.cli.output import begin, end, print_error
from harness.cli.settings import OPTIONS
from harness.errors import UserError, reason
from harness.names import printable

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

LABEL = 26  # columns of the labels
WIDEST = 100  # columns of all


class Columns:
    """The formatter of cyclopts: labels on the left, text on the right, without boxes.

    The boxes and tables of rich take half of the time of printing a help.
    """

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:  # noqa: ARG002
        """Print one group of flags."""
        if panel.entries:
            lines = [_entry(entry, console) for entry in panel.entries]
            _print(console, "\n".join([f"{panel.title}:", *lines]))

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:  # noqa: ARG002
        """Print the first line."""
        _print(console, str(usage).rstrip())

    def render_description(self, console: Console, options: ConsoleOptions, text: Any) -> None:  # noqa: ARG002
        """Print what the command does."""
        paragraphs = _plain(text).split("\n\n")
        for paragraph in filter(None, paragraphs):
            _print(console, fill(paragraph, _width(console), break_on_hyphens=False))


def _entry(entry: HelpEntry, console: Console) -> str:
    names = ", ".join(entry.display_labels_with_metavar)
    notes = [
        f"One of {', '.join(entry.choices)}." if entry.choices else "",
        "Required." if entry.required else "",
        f"[default: {entry.default}]" if entry.default is not None else "",
    ]
    text = " ".join(filter(None, [_plain(entry.description), *notes]))
    label = f"  {names:<{LABEL - 4}}  "
    first = "" if len(label) <= LABEL else f"{label.rstrip()}\n"
    begin = " " * LABEL if first else label
    width = _width(console)
    after = " " * LABEL
    return first + fill(
        text, width, initial_indent=begin, subsequent_indent=after, break_on_hyphens=False
    )


def _plain(text: Any) -> str:
    """Return a text that cyclopts has parsed as it was written."""
    text = getattr(text, "primary_renderable", text)
    return "" if text is None else str(text).strip()


def _width(console: Console) -> int:
    return min(WIDEST, console.width)


def _print(console: Console, text: str) -> None:
    console.print(f"{text}\n", markup=False, highlight=False, soft_wrap=True)


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
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or str(error.token.value)).partition("=")[0]
        if others := [name for name in COMMANDS if option in _options(name)]:
            name = others[0]
            return f"Unknown option: {option}. It is one of ropewalk {name} (see {name} --help)."
    return str(error)


def _options(name: str) -> set[str]:
    """Return the options of a command, with their aliases."""
    return {
        option for argument in app[name].assemble_argument_collection() for option in argument.names
    }


app = App(
    name="ropewalk",
    version=_version,
    help=HELP,
    help_formatter=Columns(),
    group_parameters=OPTIONS,
    help_format="plaintext",  # markdown would take twice the time to start
    suppress_keyboard_interrupt=False,  # main reports what an interrupt keeps
    # A folder may be called [] or {"a": 1}, which is JSON.
    default_parameter=Parameter(
        json_list=False, json_dict=False, negative="", consume_multiple=True
    ),
)
for name in COMMANDS:  # a command is imported when it is named
    function = "list_" if name == "list" else name  # not the built-in
    app.command(
        f"harness.cli.{name}:{function}",
        name=("list", "ls") if name == "list" else name,
        usage=f"Usage: ropewalk {name} {USAGE[name]}",
        help_epilogue=f"Example: {EXAMPLES[name]}",
    )
app.register_install_completion_command(help="Install completion for the shell that runs this.")


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a user's error is one sentence on stderr and exit status 2."""
    given = sys.argv[1:] if arguments is None else arguments
    begin(given)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal lacks becomes ?
    try:
        with terminable():
            status = _called(given)
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


def _called(given: list[str]) -> Any:
    """Run a command and return its status; the help of one is printed without parsing."""
    if len(given) == 2 and given[0] in COMMANDS and given[1] in ("--help", "-h"):
        app.help_print(given[:1])
        return COMPLETE
    return app(given, result_action="return_value", exit_on_error=False, print_error=False)


def _kept(error: BaseException) -> str:
    """Return the end of a sentence; if a command measured, it says what becomes of the samples."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ())) + "."


def _refused(*lines: str, sentences: Sequence[str] = ()) -> int:
    text = "\n".join(map(printable, lines))  # they may quote a file that came from anyone
    err.print(Text.assemble(("ropewalk:", "bold red"), f" {text}"), soft_wrap=True)
    print_error(lines, sentences or lines, REFUSED)
    return REFUSED
