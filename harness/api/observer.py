"""Report what a call does while it works: the default logs it, the command line prints it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.sweep.cells import Batch
    from harness.sweep.measure import Watch
    from harness.sweep.plan import Plan

log = logging.getLogger("ropewalk")


class Progress:
    """Receive the samples of one model as they are measured, and show nothing."""

    plan: Plan

    def __call__(self, work: Sequence[Batch]) -> AbstractContextManager[Watch]:  # noqa: ARG002
        """Return a context for measuring ``work`` that yields the receiver of its samples."""
        return nullcontext(lambda *_: None)

    def passing(self, tokens: float) -> None:
        """Receive the number of tokens that have passed through a layer."""


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

    def progress(self, plan: Plan, machine: str) -> Any:  # noqa: ARG002
        """Return the receiver of the samples of one model."""
        return Progress()


LOG = Observer()
