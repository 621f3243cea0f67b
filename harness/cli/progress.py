"""What a person sees while a sweep is measured: what is done, how fast, and the time left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ropewalk.harness.api.observer import Progress as Receiver
from ropewalk.harness.cli.console import Lines
from ropewalk.harness.sweep.measure import Event, Started, Stored

LOADING = "Loading the weights and checking the patch on them"
QUIET = 60.0  # seconds without a line where no one watches
WINDOW = 600.0  # seconds over which rich takes the speed


class Measuring(Receiver):
    """Shows cells done, the last sample and the time left; plain lines in a log."""

    def __init__(self, console: Lines) -> None:
        self.console = console
        self.shown = time.monotonic()
        self.loaded = False

    def __call__(self, events: Generator[Event]) -> Iterator[Event]:
        """Yield the events of a measurement, and report the progress."""
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=WINDOW,
        )
        with closing(events), self.bar:
            for event in events:
                self.update(event)
                yield event

    def update(self, event: Event) -> None:
        """Show an event of a measurement."""
        if isinstance(event, Started):
            self.left = Counter(item.cell.key for item in event.items)
            self.cells = len(self.left)
            if not event.items:
                self._say("Complete: nothing to measure.")
                return
            text = "Measuring" if self.loaded else LOADING
            self.console.progress(f"{text}.")
            self.entry = self.bar.add_task(text, total=sum(i.question.length for i in event.items))
        else:
            self.loaded = True
            self._stored(event)

    def _stored(self, event: Stored) -> None:
        cell, question = event.item
        self.left[cell.key] -= 1
        done = f"{sum(not rest for rest in self.left.values())}/{self.cells} cells"
        named = f"{cell.scaling}, {cell.task}, {cell.length} tokens"
        room = max(self.console.width - 62, 18)
        self.bar.update(
            self.entry,
            advance=question.length,
            description=f"{done} · {named} · {question.doc_id}"[:room],
        )
        if event.sample["status"] != "ok":
            self._say(f"{named}, {question.doc_id}: {event.sample['status']}")
        elif not self.left[cell.key]:
            self._line(f"{done}: {named}")
        elif time.monotonic() - self.shown > QUIET:
            self._line(f"{done}; {self.left.total()} samples left")

    def _say(self, text: str) -> None:
        """Print what a person at a terminal sees too."""
        if self.console.is_terminal:
            self.console.print(text, soft_wrap=True)
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        self.shown = time.monotonic()
        self.console.progress(text)
