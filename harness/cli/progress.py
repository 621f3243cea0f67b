"""What a person sees while a sweep is measured: what is done, how fast, and the time left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from harness.api.observer import Progress as Receiver
from harness.cli.console import Lines
from harness.sweep.eta import ETA, duration, initial_eta, keep_rates
from harness.sweep.measure import Answered, Event, Started
from harness.sweep.plan import Batch, Plan

LOADING = "Loading the weights and checking the patch on them"
QUIET = 60.0  # seconds without a line where no one watches


class Measuring(Receiver):
    """Shows cells done, the last sample, the rate and the time left; plain lines in a log."""

    def __init__(self, console: Lines, machine: str) -> None:
        self.console, self.machine = console, machine
        self.pace: ETA | None = None
        self.text, self.shown = LOADING, time.monotonic()

    def __call__(self, plan: Plan, events: Generator[Event]) -> Iterator[dict[str, Any]]:
        """Yield the samples of a plan as they are stored, and report the progress."""
        with closing(events):
            work = next(event.work for event in events if isinstance(event, Started))
            if not work:
                self._say("Complete: nothing to measure.")
            with self._bar(plan, work) if work else nullcontext():
                for event in events:
                    assert isinstance(event, Answered)
                    if not event.item.question.too_long:
                        self._answer(event)
                    if event.sample is not None:
                        yield event.sample

    @contextmanager
    def _bar(self, plan: Plan, work: Sequence[Batch]) -> Iterator[None]:
        pace = self.pace = initial_eta(plan, work, self.machine)
        self.cells = Counter(item.cell.key for batch in work for item in batch.items)
        self.samples = self.cells.total()
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]}", markup=False),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.entry = self.bar.add_task(self.text, total=1.0, speed=speed(pace))
        self.console.progress(f"{self.text}; {speed(pace)}")
        with self.bar:
            try:
                yield
            finally:
                keep_rates(plan, self.machine, pace)
                self.text = "Measuring"  # a plan that follows has its weights loaded

    def passing(self, tokens: float) -> None:
        """Note tokens that go through the model: none, once the weights are loaded."""
        if self.pace is None:
            return
        if self.pace.last is None:
            self.pace.begin()
            self.text = f"{self._done()} · measuring"
        self.pace.layers(tokens)
        self._move()
        self._log(self.pace)

    def _log(self, pace: ETA) -> None:
        """Write a line to a log that had none for a while."""
        if self.console.is_logged and time.monotonic() - self.shown > QUIET:
            samples = f"{self.samples - self.cells.total()}/{self.samples} samples"
            self._line(f"{self._done()}, {samples}; {speed(pace)}")

    def _answer(self, event: Answered) -> None:
        assert self.pace is not None  # made before anything is measured
        self.pace.answer(event.item, event.seconds)
        cell, question = event.item
        self.cells[cell.key] -= 1
        named = f"{cell.scaling}, {cell.task}, {cell.length} tokens"
        self.text = f"{self._done()} · {named} · {question.doc_id}"
        self._move()
        if event.sample is not None and event.sample["status"] != "ok":
            self._say(f"{named}, {question.doc_id}: {event.sample['status']}")
        elif self.console.is_logged and not self.cells[cell.key]:
            self._line(f"{self._done()}: {named}; {speed(self.pace)}")
        else:  # other processes tell of samples alone
            self._log(self.pace)

    def _done(self) -> str:
        return f"{sum(not rest for rest in self.cells.values())}/{len(self.cells)} cells"

    def _move(self) -> None:
        room = max(self.console.width - 62, 18)
        assert self.pace is not None
        share, text = self.pace.share(), self.text[:room]
        self.bar.update(self.entry, completed=share, description=text, speed=speed(self.pace))

    def _say(self, text: str) -> None:
        """Print what a person at a terminal sees too."""
        if self.console.is_terminal:
            self.console.print(text, soft_wrap=True)
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        self.shown = time.monotonic()
        self.console.progress(text)


def speed(pace: ETA) -> str:
    """Return the rate and the time left in words, what is not known left out."""
    rate, left = pace.tokens_a_second(), pace.seconds_left()
    parts = (
        [] if rate is None else [f"{rate:,.0f} tokens/s" if rate >= 10 else f"{rate:.2g} tokens/s"]
    )
    parts += ["time left unknown yet" if left is None else f"{duration(left)} left"]
    return ", ".join(parts)
