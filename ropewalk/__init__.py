"""Ropewalk in Python: all that is public, under one name. Each name is imported on first use.

- ``rope_of(model.config)`` reads the rotary geometry.
- ``methods.yarn(rope, length, factor=4)`` returns a rotation.
- ``patched(model, rotation)`` runs a loaded model with it.
- ``run(...)`` measures a sweep, and ``recommend(...)`` races methods.
- ``export(...)``, ``doctor(...)`` and the other commands are functions of the same names.
- ``testing.check_method(method, rope, lengths)`` checks a method of your own.
- ``Callback(...)`` measures a model while transformers' Trainer fine-tunes it.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.api.calibrate import calibrate as calibrate
    from harness.api.callback import Callback as Callback
    from harness.api.compare import compare as compare
    from harness.api.model import check as check
    from harness.api.model import doctor as doctor
    from harness.api.model import export as export
    from harness.api.model import inspect as inspect
    from harness.api.model import patched as patched
    from harness.api.report import report as report
    from harness.api.run import Run as Run
    from harness.api.run import frame as frame
    from harness.api.run import run as run
    from harness.api.select import recommend as recommend
    from harness.api.tune import tune as tune
    from harness.engine import OutOfMemory as OutOfMemory
    from harness.engine import answers as answers
    from harness.errors import UserError as UserError
    from harness.patching.config import rope_of as rope_of
    from harness.runs.store import to_parquet as to_parquet
    from harness.select.recommend import Recommendation as Recommendation
    from ropewalk import methods as methods
    from ropewalk import testing as testing
    from scaling import Band as Band
    from scaling import Bands as Bands
    from scaling import Frequencies as Frequencies
    from scaling import PerLayerFrequencies as PerLayerFrequencies
    from scaling import Rope as Rope
    from scaling import Rotation as Rotation
    from scaling import by_distance as by_distance
    from tasks import Divergence as Divergence
    from tasks import DivergenceResponse as DivergenceResponse
    from tasks import Document as Document
    from tasks import Generate as Generate
    from tasks import Generated as Generated
    from tasks import Group as Group
    from tasks import GroupResponse as GroupResponse
    from tasks import Loglikelihood as Loglikelihood
    from tasks import LoglikelihoodResponse as LoglikelihoodResponse
    from tasks import Request as Request
    from tasks import Response as Response
    from tasks import Sample as Sample
    from tasks import Score as Score
    from tasks import TaskContext as TaskContext

# What is public is what is imported above: each name, and the module that has it.
HOMES = {
    alias.name: str(line.module)
    for line in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(line, ast.ImportFrom)
    for alias in line.names
    if alias.asname
}
__all__ = sorted(HOMES)


def _check_packages() -> None:
    """Raise ImportError where another package has the name of one that Ropewalk consists of."""
    here = Path(__file__).resolve().parent.parent
    for name in ("harness", "scaling", "tasks"):
        spec = find_spec(name)
        search = spec.submodule_search_locations if spec else None
        places = [Path(place).resolve() for place in search or ()]
        if places[:1] != [here / name]:
            where = places[0] if places else spec and spec.origin
            raise ImportError(
                f"another {name!r} hides Ropewalk's package of this name ({where}): rename it, or "
                "start Python in another folder."
            )


def __getattr__(name: str) -> Any:
    if name in ("methods", "testing"):
        return import_module(f"ropewalk.{name}")
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)


_check_packages()
