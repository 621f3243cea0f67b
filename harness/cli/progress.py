"""What a person sees while a sweep is measured: what is done, how fast, and the time left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from ropewalk.harness.api.observer import Progress as Receiver
from ropewalk.harness.cli.console import Lines
from ropewalk.harness.sweep.measure import Answered, Event, Started
from ropewalk.harness.sweep.operations import Cost, costs, duration
from ropewalk.harness.sweep.plan import Batch, Key, Plan

LOADING = "Loading the weights and checking the patch on them"
QUIET = 60.0  # seconds without a line where no one watches
WINDOW = 600.0  # seconds over which rich takes the speed


class Measuring(Receiver):
    """Shows cells done, the last sample, the rate and the time left; plain lines in a log.

    The bar runs over counted operations, at the speed that this run has.
    """

    def __init__(self, console: Lines) -> None:
        self.console = console
        self.bar: Progress | None = None
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
        self.cells = Counter(item.cell.key for batch in work for item in batch.items)
        self.samples = self.cells.total()
        self.left: dict[Key, Cost] = {
            item.key: cost
            for batch in work
            for item, cost in zip(batch.items, costs(plan.checkpoint, batch), strict=True)
        }
        self.done = self.tokens = self.under_way = 0.0
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]}", markup=False),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=WINDOW,
        )
        total = sum(cost.total for cost in self.left.values())
        self.entry = self.bar.add_task(self.text, total=total, start=False, speed="")
        self.console.progress(f"{self.text}.")
        with self.bar:
            try:
                yield
            finally:
                self.text = "Measuring"  # a plan that follows has its weights loaded

    def passing(self, tokens: float) -> None:
        """Note tokens that go through the model: none, once the weights are loaded."""
        if self.bar is None:
            return
        if self.bar.tasks[self.entry].start_time is None:
            self.bar.start_task(self.entry)
            self.text = f"{self._done()} · measuring"
        self.under_way += tokens
        self._move()
        self._log()

    def _log(self) -> None:
        """Write a line to a log that had none for a while."""
        if self.console.is_logged and time.monotonic() - self.shown > QUIET:
            samples = f"{self.samples - self.cells.total()}/{self.samples} samples"
            self._line(f"{self._done()}, {samples}; {self._speed()}")

    def _answer(self, event: Answered) -> None:
        cost = self.left.pop(event.item.key)
        self.done += cost.total
        self.tokens += cost.forwarded + cost.generated
        self.under_way = 0.0
        cell, question = event.item
        self.cells[cell.key] -= 1
        named = f"{cell.scaling}, {cell.task}, {cell.length} tokens"
        self.text = f"{self._done()} · {named} · {question.doc_id}"
        self._move()
        if event.sample is not None and event.sample["status"] != "ok":
            self._say(f"{named}, {question.doc_id}: {event.sample['status']}")
        elif self.console.is_logged and not self.cells[cell.key]:
            self._line(f"{self._done()}: {named}; {self._speed()}")
        else:  # other processes tell of samples alone
            self._log()

    def _done(self) -> str:
        return f"{sum(not rest for rest in self.cells.values())}/{len(self.cells)} cells"

    def _move(self) -> None:
        """Move the bar, also by the tokens of requests that have no answer yet."""
        assert self.bar is not None
        done, tokens = self.done, self.under_way
        for cost in self.left.values():
            if tokens <= 0:
                break
            done += min(1.0, tokens / max(cost.forwarded, 1)) * cost.operations
            tokens -= cost.forwarded
        room = max(self.console.width - 62, 18)
        self.bar.update(self.entry, completed=done, description=self.text[:room])
        self.bar.update(self.entry, speed=self._speed())

    def _speed(self) -> str:
        """Return tokens per second and the time left, as far as they are known."""
        assert self.bar is not None
        task = self.bar.tasks[self.entry]
        rate = (self.tokens + self.under_way) / task.elapsed if task.elapsed else 0.0
        left = "unknown yet" if task.time_remaining is None else duration(task.time_remaining)
        return f"{rate:,.0f} tokens/s, time left {left}" if rate else f"time left {left}"

    def _say(self, text: str) -> None:
        """Print what a person at a terminal sees too."""
        if self.console.is_terminal:
            self.console.print(text, soft_wrap=True)
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        self.shown = time.monotonic()
        self.console.progress(text)
