"""Read the settings of a call: keyword arguments or flags, and those of a sweep file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.harness.data.documents import Documents, of_python
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.files import go_offline
from ropewalk.harness.names import is_path
from ropewalk.harness.plugins import names_code
from ropewalk.harness.runs.store import read_run
from ropewalk.harness.sweep.spec import Spec, parse, parse_all

if TYPE_CHECKING:
    from ropewalk.harness.models.checkpoint import Checkpoint

TRUST = ("trust_remote_code", "allow_pickle")
BY_NAME = (  # settings of a model that is opened by its name
    "workers", "cluster", "adapter", "dtype", "revision", "device", "device_map", "compile",
    "attention", "trust_remote_code", "allow_pickle",
)  # fmt: skip


def read_spec(settings: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Spec:
    """Return the settings of one model, where None was not given; with ``offline``, go offline.

    Raises UserError as ``parse`` does.
    """
    spec = parse(None, {**(defaults or {}), **_given(settings)})
    if spec.offline:
        go_offline()
    return spec


def read_specs(file: Path | None, settings: Mapping[str, Any]) -> tuple[Spec, ...]:
    """Return the settings of each model of a sweep; settings win over those of the file.

    Raises UserError as ``parse_all`` does.
    """
    specs = parse_all(file, _given(settings))
    if specs[0].offline:
        go_offline()
    return specs


def settings_of(run: Path, sweep: Path | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run's record, those given in their place.

    A model of the hub is that of the recorded commit. A record runs no code: a file of the user's
    own, and leave to run a repository's code, are given again. Raises UserError otherwise.
    """
    given = _given(settings)
    record = read_run(run)
    read = {name for name, field in Spec.model_fields.items() if not field.exclude} - {*TRUST}
    recorded = {name: value for name, value in record["asked"].items() if name in read}
    if sweep is not None or "out" not in given:
        raise UserError(f"--from {run} takes the place of a sweep file, and needs a new --out.")
    for kind, flag in (("method", "scaling"), ("task", "task")):
        own = [] if flag in given else [one for one in recorded[flag] if names_code(kind, one)]
        if own:
            raise UserError(
                f"{run} measured {own[0]}, a file of yours, and a record runs no code: give "
                f"--{flag} again, with where the file lies now."
            )
    if "model" not in given:
        name, revision = recorded["model"], record["model"].get("revision")
        if not (revision or "/" in name or name == "reference" or is_path(Path(name))):
            raise UserError(f"{run} measured the folder {name}, which is not here: give --model.")
        recorded["revision"] = revision or recorded.get("revision")
    return recorded | given


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in settings.items() if value is not None}
    return given | ({"docs": _documents(given["docs"])} if "docs" in given else {})


def _documents(given: Any) -> Any:
    """Return documents that are objects of Python as such, and names and paths as names."""
    if isinstance(given, Mapping):
        return {task: _documents(one) for task, one in given.items()}
    if isinstance(given, str | Documents):
        return given
    return str(given) if isinstance(given, Path) else of_python(given)


def name_of(model: Any) -> str | None:
    """Return the name of a model that is opened by it; raise UserError for a loaded model."""
    if model is not None and not isinstance(model, str | Path):
        raise UserError(
            f"model is a {type(model).__name__}; give a folder or a hub name. Only run and"
            " recommend take a loaded model."
        )
    return None if model is None else str(model)


def open_loaded(
    model: Any, tokenizer: Any, settings: Mapping[str, Any]
) -> tuple[Any, Checkpoint | None]:
    """Return what the settings call the model, and the checkpoint of a model that is loaded."""
    if isinstance(model, list | tuple):
        return [str(one) if isinstance(one, Path) else one for one in model], None
    if model is None or isinstance(model, str | Path):
        return None if model is None else str(model), None
    for name in BY_NAME:
        if settings.get(name) not in (None, Spec.model_fields[name].default):
            raise UserError(
                f"a loaded model is measured unchanged and in this process: leave out {name}."
            )
    from ropewalk.harness.models.checkpoint import hold

    loaded = hold(model, tokenizer, settings.get("trained_length"))
    return loaded.label, loaded
