"""MLflow: parameters, metrics by length, artefacts; MLFLOW_TRACKING_URI says where the server is.

A server needs ``pip install 'ropewalk[mlflow]'``, a local store all of MLflow (``pip install
mlflow``). The experiment is ``project``, or MLFLOW_EXPERIMENT_NAME, or ropewalk.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.share.trackers._types import Tracked

PACKAGE = "mlflow"
OTHERS = re.compile(r"[^\w.\-/: ]")  # signs that MLflow allows in no name
BATCH = 100  # parameters or metrics in one request


def begin(
    name: str, settings: Mapping[str, str], known: str | None, *, project: str | None = None
) -> Tracked:
    """Continue the run ``known``, or create one where the server does not have it."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    client = _client(MlflowClient)
    experiment = project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "ropewalk"
    found = None
    if known is not None:
        try:
            found = client.get_run(known)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    if found is None or found.info.lifecycle_stage == "deleted":
        there = client.get_experiment_by_name(experiment)
        number = there.experiment_id if there else client.create_experiment(experiment)
        found = client.create_run(number, run_name=name)
    else:
        client.update_run(known, status="RUNNING")
    return _Run(client, found, {_name(key): text for key, text in settings.items()})


def _client(client: Callable[[], Any]) -> Any:
    """Return a client; without a server only all of MLflow has one."""
    try:
        return client()
    except Exception as error:
        message = (
            "no server is named, and this MLflow has no store of its own: set MLFLOW_TRACKING_URI, "
            "or pip install mlflow"
        )
        if type(error).__name__ == "UnsupportedModelRegistryStoreURIException":
            raise ValueError(message) from error
        raise


class _Run:
    """A run; a parameter that changed, which MLflow does not allow, is a tag.

    Settings are sent with what is sent first: where that fails, the run itself is known already,
    and the next try continues it.
    """

    def __init__(self, client: Any, found: Any, settings: Mapping[str, str]) -> None:
        self.client, self.id = client, found.info.run_id
        uri, self.known, self.unsent = client.tracking_uri, found.data.params, settings
        path = f"/#/experiments/{found.info.experiment_id}/runs/{self.id}"
        self.place = f"{uri}{path}" if uri.startswith("http") else f"{uri}, run {self.id}"

    def _settings(self) -> None:
        from mlflow.entities import Param

        new = [Param(key, text) for key, text in self.unsent.items() if key not in self.known]
        for start in range(0, len(new), BATCH):
            self.client.log_batch(self.id, params=new[start : start + BATCH])
        for key, text in self.unsent.items():
            if self.known.get(key, text) != text:
                self.client.set_tag(self.id, key, text)
        self.unsent = {}

    def scores(self, length: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        self._settings()
        now = int(time.time() * 1000)
        new = [Metric(_name(key), value, now, length) for key, value in values.items()]
        for start in range(0, len(new), BATCH):
            self.client.log_batch(self.id, metrics=new[start : start + BATCH])

    def files(self, folder: Path) -> None:
        self._settings()
        self.client.log_artifacts(self.id, str(folder))

    def end(self, *, finished: bool) -> None:
        self._settings()
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


def _name(text: str) -> str:
    """Return a name that MLflow allows: ``yarn:factor=4`` becomes ``yarn:factor 4``."""
    return OTHERS.sub(" ", text)
