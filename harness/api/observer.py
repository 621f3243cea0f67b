"""Report what a call does while it works: the default logs it, the command line prints it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropewalk.harness.sweep.measure import Event

log = logging.getLogger("ropewalk")


class Progress:
    """Receive what happens while plans of one model are measured, and show nothing."""

    def __call__(self, events: Generator[Event]) -> Iterator[Event]:
        """Yield the events of a measurement."""
        with closing(events):
            yield from events


class Observer:
    """Receive notes and progress, and log the notes; override what is to be shown."""

    def note(self, text: str, *, warning: bool = False) -> None:
        """Receive a sentence about what is done."""
        log.log(logging.WARNING if warning else logging.INFO, text)

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show what is being done while the context is open; yield what changes the text."""
        log.debug(text)
        yield log.debug

    def progress(self) -> Progress:
        """Return the receiver of the samples of one model."""
        return Progress()


LOG = Observer()
