"""Trackio: a local dashboard, a Space, or a server of your own.

TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say where a run is sent, TRACKIO_DIR where it is kept. The
project is ``project``, or ropewalk.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from accelerate.tracking import TrackioTracker

from harness.share.trackers import TrackedRun
from harness.share.trackers._accelerate import send_folder, started

PACKAGE = "trackio"
QUIET = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}


def begin(
    name: str, settings: Mapping[str, str], known: str | None, *, project: str = "ropewalk"
) -> TrackedRun:
    """Continue the run of the name ``known``, or create one where there is none."""
    config = dict(settings)
    if known is not None:
        try:
            old = TrackioTracker(project, name=known, config=config, resume="must", **QUIET)
            return _Run(started(old))
        except ValueError:  # it was deleted, or is in another place
            pass
    new = f"{name}-{secrets.token_hex(3)}"
    return _Run(started(TrackioTracker(project, name=new, config=config, resume="never", **QUIET)))


class _Run:
    """A run whose name is its id: Trackio continues a run by its name."""

    def __init__(self, tracker: TrackioTracker) -> None:
        self.tracker, self.id = tracker, str(tracker.tracker.name)
        self.place = f"trackio show --project {tracker.tracker.project!r}"

    def scores(self, length: int, values: Mapping[str, float]) -> None:
        self.tracker.log(dict(values), step=length)

    def files(self, folder: Path) -> None:
        import trackio

        send_folder(trackio, self.tracker, self.id, folder)

    def end(self, *, finished: bool) -> None:  # noqa: ARG002  # Trackio has no status
        self.tracker.finish()
