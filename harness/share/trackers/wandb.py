"""Weights & Biases, online or WANDB_MODE=offline: charts by length, figures, an artefact of files.

The project is ``project``, or WANDB_PROJECT, or ropewalk. The machine, the working folder, the
git remote and the terminal's output are not sent. ``wandb sync`` sends what was offline.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.share.trackers._artefact import send_folder
from harness.share.trackers._types import Tracked

PACKAGE = "wandb"
SILENT = {
    "console": "off", "silent": True, "disable_git": True, "disable_code": True,
    "disable_job_creation": True, "x_disable_meta": True, "x_disable_machine_info": True,
    "x_disable_stats": True, "x_save_requirements": False,
}  # fmt: skip


def begin(
    name: str, settings: Mapping[str, str], known: str | None, *, project: str | None = None
) -> Tracked:
    """Continue the run ``known``, or create one."""
    import wandb

    run = wandb.init(
        project=project or os.environ.get("WANDB_PROJECT") or "ropewalk", name=name,
        id=known or secrets.token_hex(4), resume="allow", settings=wandb.Settings(**SILENT),
    )  # fmt: skip
    run.config.update(dict(settings), allow_val_change=True)
    run.define_metric("length")
    run.define_metric("*", step_metric="length")
    return _Run(run)


class _Run:
    """A run, whose charts have the length across."""

    def __init__(self, run: Any) -> None:
        self.run, self.id = run, str(run.id)
        self.place = f"wandb sync {Path(run.dir).parent}" if run.offline else str(run.url)

    def scores(self, length: int, values: Mapping[str, float]) -> None:
        self.run.log({"length": length, **values})

    def files(self, folder: Path) -> None:
        import wandb

        send_folder(wandb, self.run, f"reports-{self.id}", folder)

    def end(self, *, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)
