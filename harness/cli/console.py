"""Define the consoles of the commands: results on stdout, everything else on stderr."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from harness.names import printable

COMPLETE, WITH_FAILURES, REFUSED, INTERRUPTED = 0, 1, 2, 130  # exit statuses
PIPED = 120  # columns where no terminal tells


class _Console(Console):
    """Ends a command with the interrupt status when its reader closes the pipe."""

    def on_broken_pipe(self) -> None:
        """Write nothing more, and stop silently: ``ropewalk list | head`` is not an error."""
        with suppress(SystemExit):
            super().on_broken_pipe()
        raise SystemExit(INTERRUPTED)


# Names come from files and data sets: do not read markup, emojis or numbers in them.
console = partial(_Console, markup=False, emoji=False, highlight=False)
screen = console(width=None if sys.stdout.isatty() else PIPED)
err = console(width=None if sys.stderr.isatty() else PIPED, stderr=True)


def say(sentence: str) -> None:
    """Print a sentence on stderr as it is."""
    err.print(printable(sentence), highlight=False, markup=False)


Many = Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True, negative="")]
Switch = Annotated[bool | None, Parameter(negative="")]


@contextmanager
def keeping(folders: Sequence[Path]) -> Iterator[None]:
    """Have what ends a measurement in its midst say whether anything in its folders is kept."""
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        from harness.runs.store import SAMPLES  # its parser of JSON takes a tenth of the start

        files = [folder / SAMPLES for folder in folders]
        if any(file.is_file() and file.stat().st_size for file in files):
            error.add_note("everything measured is kept. The same command continues")
        else:
            error.add_note("nothing was measured yet")
        raise


@contextmanager
def terminable() -> Iterator[None]:
    """Handle SIGTERM, which batch systems send, and a closed terminal like Ctrl-C."""
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)}
    for name, handler in before.items():
        if name == signal.SIGTERM or handler == signal.SIG_DFL:  # nohup continues
            signal.signal(name, signal.default_int_handler)
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
