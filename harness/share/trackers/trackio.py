"""Trackio: a local dashboard, a Space, or a server of your own.

TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say where it is sent, TRACKIO_DIR where it is kept. The
project is ``project``, or ropewalk.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.share.trackers._artefact import send_folder
from harness.share.trackers._types import Tracked

PACKAGE = "trackio"


def begin(
    name: str, settings: Mapping[str, str], known: str | None, *, project: str = "ropewalk"
) -> Tracked:
    """Continue the run of the name ``known``, or create one where there is none."""
    import trackio

    def init(called: str, resume: str) -> Any:
        return trackio.init(
            project, called, config=dict(settings), resume=resume, embed=False,
            auto_log_cpu=False, auto_log_gpu=False,
        )  # fmt: skip

    if known is not None:
        try:
            return _Run(init(known, "must"))
        except ValueError:  # it was deleted, or is in another place
            pass
    return _Run(init(f"{name}-{secrets.token_hex(3)}", "never"))


class _Run:
    """A run, whose name is its id: Trackio continues a run by its name."""

    def __init__(self, run: Any) -> None:
        self.run, self.id = run, str(run.name)
        self.place = f"trackio show --project {run.project!r}"

    def scores(self, length: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=length)

    def files(self, folder: Path) -> None:
        import trackio

        send_folder(trackio, self.run, f"reports-{self.id}", folder)

    def end(self, *, finished: bool) -> None:  # noqa: ARG002  # Trackio has no status
        self.run.finish()
