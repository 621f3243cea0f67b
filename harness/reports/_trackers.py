"""Send the scores of a run to the trackers of ``accelerate.tracking`` (``--track NAME``)."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from ropewalk.harness.errors import UserError, nearest
from ropewalk.harness.plugins import RAISED, failure
from ropewalk.harness.reports._write import write_reports
from ropewalk.harness.runs.frame import make_frame, score_of
from ropewalk.harness.runs.record import SampleRecord
from ropewalk.harness.runs.store import KEPT, read_samples
from ropewalk.harness.sweep.measure import Event, Started
from ropewalk.harness.sweep.plan import Item, Key, Plan

log = logging.getLogger("ropewalk")
RUN_NAME = {"mlflow": ["run_name"], "trackio": ["name"], "wandb": ["name"]}  # arguments for it
OTHERS = re.compile(r"[^\w.\-/: ]")  # characters that MLflow allows in no name


def series(name: str) -> str:
    """Return a name that every tracker allows: ``yarn:factor=4`` becomes ``yarn:factor 4``."""
    return OTHERS.sub(" ", name)


def check_trackers(given: Iterable[str]) -> None:
    """Raise UserError for an unknown tracker, and for one whose package is not installed."""
    for text in given:
        name = text.partition(":project=")[0]
        if name not in LOGGER_TYPE_TO_CLASS:
            raise UserError(
                f"no tracker is called {name!r}; {nearest(name, LOGGER_TYPE_TO_CLASS)}."
            )
        if name not in map(str, get_available_trackers()):
            raise UserError(f"--track {name} needs: pip install {name.replace('_', '-')}.")


@contextmanager
def tracking(plan: Plan, folder: Path) -> Iterator[Callable[[Event], None]]:
    """Yield what sends the events of a measurement to the trackers of the sweep.

    The score of each finished cell is sent with its length as the step, at the start those of
    cells that were finished before; at the end the files of the reports.
    """
    trackers: list[Tracker] = []
    samples: dict[Key, SampleRecord] = {}
    tasks = {task.label: task for task in plan.tasks}

    def update(event: Event) -> None:
        if not plan.spec.track:
            return
        if isinstance(event, Started):
            trackers[:] = [Tracker(text, plan, folder) for text in plan.spec.track]
            before = read_samples(folder).items()
            samples.update({key: row for key, row in before if row["status"] in KEPT})
            cells = plan.cells
        else:
            samples[event.item.key] = event.sample
            cells = tuple(cell for cell in plan.cells if cell.key == event.item.key[0])
        for cell in cells:
            keys = [Item(cell, question).key for question in cell.questions]
            if samples.keys() >= {*keys}:
                score = score_of(tasks[cell.task], [samples[key] for key in keys])[0]["score"]
                for tracker in trackers if score is not None else ():
                    tracker.log(series(f"{cell.task}/{cell.scaling}"), score, cell.length)

    try:
        yield update
        if trackers:
            with TemporaryDirectory() as reports:
                write_reports(make_frame([folder], plan.spec.task), Path(reports))
                for tracker in trackers:
                    tracker.send_files(reports)
    finally:
        for tracker in trackers:
            tracker.call(lambda run: run.finish())


class Tracker:
    """A run in a tracker, until the tracker's first error."""

    def __init__(self, text: str, plan: Plan, folder: Path) -> None:
        self.name, _, project = text.partition(":project=")
        self.failed = False
        self.run: Any = None
        self.call(lambda _: self._start(project or "ropewalk", plan, folder))

    def call(self, work: Callable[[Any], object]) -> None:
        """Call the tracker; an error is a warning, and ends it. What it prints is no result."""
        try:
            with redirect_stdout(sys.stderr):
                if not self.failed:
                    work(self.run)
        except RAISED as error:
            self.failed = True
            log.warning(f"Nothing more is sent to {self.name}: {failure(error)}. The run goes on.")

    def _start(self, project: str, plan: Plan, folder: Path) -> None:
        PartialState()  # accelerate's trackers need it
        kind = LOGGER_TYPE_TO_CLASS[self.name]
        place = [str(folder)] if kind.requires_logging_directory else []
        named: dict[str, Any] = dict.fromkeys(RUN_NAME.get(self.name, ()), folder.absolute().name)
        if self.name == "wandb":
            named["settings"] = {"console": "off"}  # what the terminal shows is not sent
        self.run = kind(project, *place, **named)
        self.run.start()
        settings = plan.spec.model_dump(mode="json", exclude_none=True)
        settings |= {name: getattr(plan.checkpoint, name) for name in ("fingerprint", "dtype")}
        self.run.store_init_configuration({name: str(value) for name, value in settings.items()})
        if self.name == "wandb":
            self.run.tracker.define_metric("*", step_metric="length")

    def log(self, name: str, score: float, length: int) -> None:
        """Send a score; W&B drops a step that is less than the last one, so the length is data."""
        more = {"length": length} if self.name == "wandb" else {}
        self.call(lambda run: run.log({name: score, **more}, step=None if more else length))

    def send_files(self, folder: str) -> None:
        """Send the files of a folder as artifacts, where the tracker has them."""
        if self.name == "mlflow":
            self.call(lambda run: run.log_artifacts(folder))
        elif self.name == "wandb":
            self.call(lambda run: run.tracker.log_artifact(folder, "reports", "reports"))
