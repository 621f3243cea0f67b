"""Weights & Biases, online or WANDB_MODE=offline: charts by length, figures, an artifact of files.

The project is ``project``, or WANDB_PROJECT, or ropewalk. The machine, the working folder, the
git remote and the terminal's output are not sent. ``wandb sync`` sends what was offline.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from accelerate.tracking import WandBTracker

from harness.share.trackers import TrackedRun
from harness.share.trackers._accelerate import send_folder, started

PACKAGE = "wandb"
SILENT = {
    "console": "off", "silent": True, "disable_git": True, "disable_code": True,
    "disable_job_creation": True, "x_disable_meta": True, "x_disable_machine_info": True,
    "x_disable_stats": True, "x_save_requirements": False,
}  # fmt: skip


def begin(
    name: str, settings: Mapping[str, str], known: str | None, *, project: str | None = None
) -> TrackedRun:
    """Continue the run ``known``, or create one."""
    import wandb

    tracker = WandBTracker(
        project or os.environ.get("WANDB_PROJECT") or "ropewalk",
        name=name,
        id=known or secrets.token_hex(4),
        resume="allow",
        settings=wandb.Settings(**SILENT),
    )
    started(tracker).store_init_configuration(dict(settings))
    tracker.tracker.define_metric("length")
    tracker.tracker.define_metric("*", step_metric="length")
    return _Run(tracker)


class _Run:
    """A run whose charts have the length on their horizontal axis."""

    def __init__(self, tracker: WandBTracker) -> None:
        self.tracker, run = tracker, tracker.tracker
        self.id = str(run.id)
        self.place = f"wandb sync {Path(run.dir).parent}" if run.offline else str(run.url)

    def scores(self, length: int, values: Mapping[str, float]) -> None:
        self.tracker.log({"length": length, **values})

    def files(self, folder: Path) -> None:
        import wandb

        send_folder(wandb, self.tracker, self.id, folder)

    def end(self, *, finished: bool) -> None:
        self.tracker.tracker.finish(exit_code=0 if finished else 1)
