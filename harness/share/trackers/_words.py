"""What the process that measures and the one that sends a run to a tracker both know."""

from __future__ import annotations

import shlex
from pathlib import Path

from harness.runs.store import RUN

FINISHED, STOPPED = "finished", "stopped"
REPORTED = "reported"  # finished, and the run folder has the reports that were made of it just now


def written_at(folder: Path) -> int:
    """Return when the record of a run was written, 0 where there is none."""
    try:
        return (folder / RUN).stat().st_mtime_ns
    except OSError:
        return 0


def again(folder: Path, tracker: str) -> str:
    """Return how to send what is missing."""
    return (
        f"{shlex.join(['ropewalk', 'publish', str(folder), '--to', tracker])} sends what is missing"
    )
