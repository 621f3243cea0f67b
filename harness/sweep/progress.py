"""Show on stderr how far a sweep is: a bar at a terminal, a line per method in a log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from ropewalk.harness.sweep.measure import Event


class Lines(Console):
    """Leaves it to the command line what happens where its reader went away."""

    def on_broken_pipe(self) -> None:
        """Raise the error that rich would end the program for."""
        raise BrokenPipeError


log = logging.getLogger("ropewalk")
# Notes are printed here too, above the bar.
console = Lines(stderr=True, markup=False, emoji=False, highlight=False)
WINDOW = 600.0  # seconds over which the speed is taken
bar = Progress(
    SpinnerColumn(),
    TextColumn("{task.description}", markup=False),
    BarColumn(bar_width=20),
    TimeRemainingColumn(elapsed_when_finished=True),
    console=console,
    speed_estimate_period=WINDOW,
    transient=True,
)


def describe(text: str) -> None:
    """Show what is waited for, where there is a bar."""
    for task in bar.task_ids:
        bar.update(task, description=text[-console.width // 2 :])


def follow(events: Generator[Event]) -> Iterator[Event]:
    """Yield the events of a measurement, and show how many of its tokens are done."""
    from ropewalk.harness.sweep.measure import Started

    bar.disable = not console.is_terminal
    with closing(events), bar, ExitStack() as ends:
        for event in events:
            if isinstance(event, Started):
                samples = Counter(item.cell.key for item in event.items)
                methods = Counter(item.cell.scaling for item in event.items)
                total = sum(item.question.length for item in event.items)
                task = bar.add_task("Loading the weights", total=total, visible=total > 0)
                ends.callback(bar.remove_task, task)
            else:
                cell, question = event.item
                samples[cell.key] -= 1
                methods[cell.scaling] -= 1
                done = f"{sum(not left for left in samples.values())}/{len(samples)} cells"
                text = f"{done} · {cell.scaling}, {cell.task}, {cell.length} tokens"
                bar.update(task, advance=question.length, description=text)
                if not methods[cell.scaling] and bar.disable:
                    count = sum(not left for left in methods.values())
                    log.info(f"{cell.scaling} is measured: {count} of {len(methods)} methods.")
            yield event
