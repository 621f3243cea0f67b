"""Define the consoles of the commands: results on stdout, all else on stderr, both in a log."""

from __future__ import annotations

import logging
import signal
import sys
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from io import StringIO
from threading import Timer
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

from rich.console import Console
from rich.control import Control

from ropewalk.harness.api.observer import Observer, Progress
from ropewalk.harness.names import printable

if TYPE_CHECKING:
    from ropewalk.harness.serve._doctor import Finding

COMPLETE, WITH_FAILURES, REFUSED, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141  # exit statuses
HOLDS, UNKNOWN = 3, 4  # of --fail-if: a condition holds, or cannot be evaluated
PIPED = 120  # columns where no terminal tells


@dataclass(frozen=True)
class Done:
    """What a command gives back: an object of the API, and its exit status."""

    result: Any
    status: int = COMPLETE


class Lines(Console):
    """Copies what it prints into a log; ends a command when its reader closes the pipe."""

    file_log: ClassVar[IO[str] | None] = None  # what --log-file names

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as ``Console`` does, and write the same into the log."""
        if not all(isinstance(one, Control) for one in objects):
            self._log(*objects, **options)
        super().print(*objects, **options)

    def progress(self, text: str, *, clock: bool = True) -> None:
        """Print a line of progress where no bar shows it: in the log, and without a terminal."""
        self._log(text, soft_wrap=True)
        if not self.is_terminal:
            now = f"{datetime.now().astimezone():%H:%M:%S} " if clock else ""
            super().print(f"{now}{text}", soft_wrap=True)

    @property
    def is_logged(self) -> bool:
        """Whether lines of progress are written anywhere."""
        return Lines.file_log is not None or not self.is_terminal

    def raw(self, text: str) -> None:
        """Print a text without wrapping or markup, and not into the log."""
        super().print(text, soft_wrap=True)

    def _log(self, *objects: Any, **options: Any) -> None:
        if Lines.file_log is None:
            return
        page = Console(file=StringIO(), width=PIPED, markup=False, emoji=False, highlight=False)
        if all(isinstance(one, str) for one in objects):
            options["soft_wrap"] = True  # a line stays whole
        page.print(*objects, **options)
        assert isinstance(page.file, StringIO)
        now = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}"
        for line in page.file.getvalue().splitlines():
            if line.strip():
                Lines.file_log.write(f"{now} {line.rstrip()}\n")
        Lines.file_log.flush()

    def on_broken_pipe(self) -> None:
        """Write nothing more, and stop silently with the status of SIGPIPE, as ``cat`` does."""
        with suppress(SystemExit):
            super().on_broken_pipe()
        raise SystemExit(UNREAD)


# Names come from files and data sets: do not read markup, emojis or numbers in them.
console = partial(Lines, markup=False, emoji=False, highlight=False)
screen = console(width=None if sys.stdout.isatty() else PIPED)
err = console(width=None if sys.stderr.isatty() else PIPED, stderr=True)  # errors
notes = console(width=None if sys.stderr.isatty() else PIPED, stderr=True)  # silent with --quiet


class Note(NamedTuple):
    """A sentence about what a command does."""

    text: str
    warning: bool


given: list[Note] = []  # the notes of this command


class Terminal(Observer):
    """Print notes, by default on stderr, and progress there."""

    def __init__(self, console: Lines = notes) -> None:
        self.console = console

    def note(self, text: str, *, warning: bool = False) -> None:
        """Print a sentence; in a log its line is not broken."""
        given.append(Note(text, warning))
        style = "bold yellow" if warning else None
        text = f"Warning: {text}" if warning else text
        self.console.print(printable(text), style=style, soft_wrap=not notes.is_terminal)

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner beside the text; in a log only what changes it is a line."""
        with notes.status(text) as status:

            def update(text: str) -> None:
                status.update(printable(text))
                notes.progress(f"{printable(text)}.", clock=False)

            yield update

    def progress(self) -> Progress:
        """Return the display of what is measured."""
        from ropewalk.harness.cli.progress import Measuring

        return Measuring(notes)


TERMINAL = Terminal()


class Notes(logging.Handler):
    """Prints the notes of the library."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a note."""
        TERMINAL.note(record.getMessage(), warning=record.levelno >= logging.WARNING)


def note_demo() -> None:
    """Say that no model was named, and how to name one."""
    TERMINAL.note(
        "This uses the embedded demo model (5 million parameters, trained window 256 tokens); its "
        "rankings do not transfer to large models. Name your own: --model FOLDER or OWNER/NAME."
    )


MARKS = {"passed": "✓", "failed": "✗", "note": "·"}


def print_finding(finding: Finding, width: int) -> None:
    """Print a finding in one line, its text after ``width`` letters for what it is about."""
    line = f"{MARKS[finding.verdict]} {finding.about:<{width}}  {printable(finding.text)}"
    screen.print(line, soft_wrap=True)


@contextmanager
def terminable() -> Iterator[None]:
    """Handle SIGTERM, which batch systems send, and a closed terminal like Ctrl-C.

    An interrupt that falls into a callback where Python ignores errors (a finalizer, a callback of
    the garbage collector) is sent once more, else it would be lost.
    """
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)}
    hook = sys.unraisablehook

    def interrupt_again(ignored: sys.UnraisableHookArgs) -> None:
        if ignored.exc_type is KeyboardInterrupt:
            Timer(0.05, interrupt_main).start()  # from here it would be ignored too
        else:
            hook(ignored)

    for name, handler in before.items():
        if name == signal.SIGTERM or handler == signal.SIG_DFL:  # nohup continues
            signal.signal(name, signal.default_int_handler)
    sys.unraisablehook = interrupt_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for name, handler in before.items():
            signal.signal(name, handler)
