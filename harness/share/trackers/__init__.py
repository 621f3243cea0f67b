"""Experiment trackers: each public file here sends a run to one while it is measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from harness.runs.store import RUN

FINISHED, STOPPED = "finished", "stopped"  # how a measurement ended


class TrackedRun(Protocol):
    """A run in a tracker, as ``begin(name, settings, known, *, options…)`` of its file returns it.

    ``known`` is the id of the run to continue, None for a new one. Any exception becomes a warning,
    and what was not sent is sent later.
    """

    id: str
    place: str  # where a person sees it

    def scores(self, length: int, values: Mapping[str, float]) -> None:
        """Send the scores at a length in tokens, which is the step."""

    def files(self, folder: Path) -> None:
        """Send all files of a folder: page, tables and figures."""

    def end(self, *, finished: bool) -> None:
        """Send what is left and close the run; unless ``finished``, it will be continued."""


def written_at(folder: Path) -> int:
    """Return when the record of a run was written, 0 where there is none."""
    try:
        return (folder / RUN).stat().st_mtime_ns
    except OSError:
        return 0


def send_again(folder: Path, tracker: str) -> str:
    """Return the sentence that says how to send what is missing."""
    command = shlex.join(["ropewalk", "publish", str(folder), "--to", tracker])
    return f"{command} sends what is missing"
