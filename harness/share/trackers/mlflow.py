"""MLflow: parameters, metrics by length, artifacts; MLFLOW_TRACKING_URI says where the server is.

A server needs ``pip install 'ropewalk[mlflow]'``, a local store all of MLflow (``pip install
mlflow``). The experiment is ``project``, or MLFLOW_EXPERIMENT_NAME, or ropewalk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from accelerate.tracking import MLflowTracker

from harness.share.trackers import TrackedRun
from harness.share.trackers._accelerate import started

PACKAGE = "mlflow"
OTHERS = re.compile(r"[^\w.\-/: ]")  # characters that MLflow allows in no name
# MLflow would send the user's name and the path of the program.
ANONYMOUS = {"mlflow.user": "unknown", "mlflow.source.name": "ropewalk"}


def begin(
    name: str, settings: Mapping[str, str], known: str | None, *, project: str | None = None
) -> TrackedRun:
    """Continue the run ``known``, or create one where the server does not have it."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    tracker = MLflowTracker("ropewalk", run_name=name)
    tracker.experiment_name = project or tracker.experiment_name
    tracker.run_id = known if known and _exists(known) else None
    tracker.tags = ANONYMOUS
    return _Run(started(tracker), {_name(key): text for key, text in settings.items()})


def _exists(known: str) -> bool:
    import mlflow

    try:
        return bool(mlflow.get_run(known).info.lifecycle_stage != "deleted")
    except mlflow.exceptions.MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False


class _Run:
    """A run; a parameter that changed, which MLflow does not allow, is sent as a tag.

    Settings are sent with the first scores: where that fails, the run itself is known already, and
    the next try continues it.
    """

    def __init__(self, tracker: MLflowTracker, settings: Mapping[str, str]) -> None:
        import mlflow

        self.tracker, self.unsent, run = tracker, settings, tracker.tracker
        self.id, uri = run.info.run_id, mlflow.get_tracking_uri()
        path = f"/#/experiments/{run.info.experiment_id}/runs/{self.id}"
        self.place = f"{uri}{path}" if uri.startswith("http") else f"{uri}, run {self.id}"

    def _settings(self) -> None:
        import mlflow

        known = self.tracker.tracker.data.params
        new = {key: text for key, text in self.unsent.items() if key not in known}
        changed = {key: text for key, text in self.unsent.items() if known.get(key, text) != text}
        if new:
            self.tracker.store_init_configuration(new)
        if changed:
            mlflow.set_tags(changed)
        self.unsent = {}

    def scores(self, length: int, values: Mapping[str, float]) -> None:
        self._settings()
        self.tracker.log({_name(key): value for key, value in values.items()}, step=length)

    def files(self, folder: Path) -> None:
        self.tracker.log_artifacts(str(folder))

    def end(self, *, finished: bool) -> None:
        import mlflow

        self._settings()
        mlflow.end_run("FINISHED" if finished else "KILLED")


def _name(text: str) -> str:
    """Return a name that MLflow allows: ``yarn:factor=4`` becomes ``yarn:factor 4``."""
    return OTHERS.sub(" ", text)
