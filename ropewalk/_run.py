"""Measure a sweep from Python, and read what was measured."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from harness.backends.connect import connected
from harness.cli.console import say
from harness.cli.models import measured, planned
from harness.errors import UserError
from harness.hub import go_offline
from harness.models.checkpoint import Checkpoint, hold
from harness.plugins import load, names_code
from harness.reports.plots.style import drawing
from harness.runs.frame import make_frame
from harness.sweep.parse import parse_all
from harness.sweep.spec import Spec

BY_NAME = (  # settings of a model that is opened by its name
    "workers", "cluster", "adapter", "dtype", "revision", "device", "device_map",
    "trust_remote_code", "allow_pickle",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One or more run folders, and what is made of them.

    ``failures`` says, a sentence each, what has no number and why.
    """

    folders: tuple[Path, ...]
    tasks: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    def frame(self) -> pd.DataFrame:
        """Return one row a sample, with its cell's score; ``results/README.md`` has the columns."""
        return make_frame(self.folders, self.tasks, mixed=len(self.folders) > 1)

    def report(self, name: str, **options: Any) -> pd.DataFrame | Figure:
        """Return a report by name (``"curves"``, ``"best"``, …) or by path to a file of your own.

        Raises UserError for a name or an option that is unknown, and ValueError for a report that
        does not apply to what was measured.
        """
        report = load("report", name)
        with drawing():
            made: pd.DataFrame | Figure = report.module.make(
                self.frame(), **{**report.arguments, **options}
            )
        if isinstance(made, Figure):
            _show_figures()
        return made


def frame(folders: str | Path | Iterable[str | Path], tasks: Iterable[str] = ()) -> pd.DataFrame:
    """Return the frame of one or more run folders, read from their files alone.

    ``tasks`` are your own task files that the runs were measured with. Raises UserError where runs
    are not comparable.
    """
    many = [folders] if isinstance(folders, str | Path) else folders
    return make_frame([Path(folder) for folder in many], tasks)


def run(model: Any = "reference", *, tokenizer: Any = None, **settings: Any) -> Run:
    """Measure a sweep, or continue it, and return it; progress is shown on stderr.

    ``model`` is a folder, a hub name, several of them, or a loaded model, then with its
    ``tokenizer``. ``scaling`` takes functions beside names and files: ``f(rope, length) ->
    Rotation`` (Frequencies, PerLayerFrequencies or Bands). The other settings are those of the
    command line and of a sweep file: ``task``, ``length``, ``docs``, ``out``, ``seed``, …
    (``ropewalk run --help``);
    those of how a model is opened (``dtype``, ``adapter``, …) are refused beside a loaded one.
    Raises UserError, in one sentence, before any weight is read.
    """
    name, loaded = opened(model, tokenizer, settings)
    specs = parse_all(None, {"model": name, **settings})
    if specs[0].offline:
        go_offline()
    with connected(specs[0], say) as ray:
        done = measured(planned(specs, ray, loaded), ray)
    return Run(
        folders=tuple(folder for folder, _ in done),
        tasks=tuple(given for given in specs[0].task if names_code("task", given)),
        failures=tuple(dict.fromkeys(f.reason for _, failed in done for f in failed)),
    )


def opened(
    model: Any, tokenizer: Any, settings: Mapping[str, Any]
) -> tuple[Any, Checkpoint | None]:
    """Return what the settings name as model, and the checkpoint of a loaded one."""
    if isinstance(model, list | tuple):
        return [str(one) if isinstance(one, Path) else one for one in model], None
    if isinstance(model, str | Path):
        return str(model), None
    for name in BY_NAME:
        if settings.get(name) not in (None, Spec.model_fields[name].default):
            raise UserError(
                f"a loaded model is measured as it is, in this process; leave out {name}."
            )
    loaded = hold(model, tokenizer, settings.get("trained_length"))
    return loaded.label, loaded


def _show_figures() -> None:
    """Let a notebook draw figures that were made without pyplot."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"})
