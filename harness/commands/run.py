"""``ropewalk run``: measure a sweep and report it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ropewalk.harness.errors import UserError
from ropewalk.harness.sweep.spec import (
    MODEL,
    DryRun,
    FailIf,
    Spec,
    parse_all,
    settings_of,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ropewalk.harness.commands.plan import PlanSummary
    from ropewalk.harness.commands.report import Reports
    from ropewalk.harness.models.checkpoint import Checkpoint
    from ropewalk.harness.sweep.plan import Backend, Plan
    from ropewalk.scaling.types import Rotation

log = logging.getLogger("ropewalk")
BY_NAME = (  # settings of a model that is opened by its name
    "workers", "cluster", "server", "engine", "adapter", "dtype", "revision", "device",
    "device_map", "trust_remote_code", "allow_pickle",
)  # fmt: skip
DEMO = (
    "This uses the embedded demo model, whose rankings do not transfer to large models. Name your "
    "own: --model FOLDER or OWNER/NAME."
)


@dataclass(frozen=True)
class Run:
    """One or more run folders, and what is made of them; ``print(run)`` shows the answer.

    Attributes:
        folders: the run folders, one per model.
        tasks: the user's own task files that were measured.
        reports: what was written; None where only measuring was requested.
        left_out: the number of models that could not be measured.
    """

    folders: tuple[Path, ...]
    tasks: tuple[str, ...] = ()
    reports: Reports | None = None
    left_out: int = 0

    JSON = ("folders", "scores", "reports")

    @property
    def status(self) -> int:
        """The exit status of the command."""
        status = self.reports.status if self.reports else 0
        return status or int(bool(len(self.missing) or self.left_out))

    def frame(self, *, losses: bool = False) -> pd.DataFrame:
        """Return one row per sample, with its cell's score (``results/README.md``).

        ``losses`` adds the loss of every token, or of every run of tokens, as a list.
        """
        from ropewalk.harness.runs.frame import make_frame

        table = make_frame(self.folders, self.tasks, mixed=len(self.folders) > 1)
        return table if losses else table.drop(columns="losses", errors="ignore")

    @property
    def missing(self) -> pd.DataFrame:
        """One row per sample without a number: its cell, its status, and the reason."""
        from ropewalk.harness.runs.frame import without_numbers

        return without_numbers(self.reports.frame if self.reports else self.frame())

    @property
    def scores(self) -> pd.DataFrame:
        """One row per model, task, scaling and length, with the score and its 95 % interval."""
        from ropewalk.harness.stats.cells import cell_scores

        return cell_scores(self.frame())

    def report(self, name: str, *, figure: bool = False, **options: Any) -> pd.DataFrame | Figure:
        """Return a report by name (``"curves"``, ``"cells"``, …) or by path to a file of your own.

        Raises UserError for an unknown name, and ValueError for a report that does not apply to
        what was measured. ``figure``: that of a report that has a table too.
        """
        from matplotlib.figure import Figure

        from ropewalk.harness.plugins import load
        from ropewalk.harness.reports._style import drawing

        report = load("report", name)
        frame = self.frame(losses=True)
        with drawing():
            result: pd.DataFrame | Figure = report.module.make(
                frame, **{**report.arguments, **options}
            )
            if figure and not isinstance(result, Figure):
                if not hasattr(report.module, "draw"):
                    raise UserError(f"the report {name} is a table; it has no figure.")
                result = report.module.draw(frame, result)
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if isinstance(result, Figure) and shell is not None:
            from IPython.core.pylabtools import select_figure_formats

            select_figure_formats(shell, {"png"})  # else only figures of pyplot are drawn
        return result

    def __str__(self) -> str:
        from ropewalk.harness.commands.report import answer, failures
        from ropewalk.harness.reports.cells import cells

        if self.reports:
            return str(self.reports)
        frame = self.frame()
        return "\n".join([answer(cells(frame)), *failures(frame)])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def run_sweep(
    sweep: Path | None = None,
    /,
    *,
    model: Annotated[tuple[str, ...] | None, Parameter(group=MODEL, alias="-m")] = None,
    adapter: Annotated[tuple[str, ...] | None, Parameter(group=MODEL)] = None,
    spec: Annotated[Spec, Parameter(name="*")] = Spec(),
    fail_if: FailIf = (),
    dry_run: DryRun = False,
) -> Run | list[PlanSummary]:
    """Run a sweep: every scaling x task x length. The same command continues where it stopped.

    Args:
        sweep: A YAML file with the same settings, or a sweep that `list` names; flags win over it.
        model: Folders, hub names (NAME@REVISION) or GGUF files. [default: reference, the embedded
            demo model]
        adapter: PEFT adapters for the model: folders or hub names. none is the model itself.
        fail_if: Conditions that end in exit status 3: queries of pandas on the cells, such as
            'scaling == "yarn" and length == 16384 and score > 20'. Exit status 4: one cannot be
            evaluated.
        dry_run: Print the plan and its cost; read no weights and write nothing.
    """
    settings: dict[str, Any] = {"model": model, "adapter": adapter, **settings_of(spec)}
    specs = parse_all(sweep, settings)  # before anything that takes long to import
    if specs[0].model == Spec.model_fields["model"].default and model is None:
        log.info(DEMO)
    from ropewalk.harness.commands.gate import check
    from ropewalk.harness.commands.plan import summarize
    from ropewalk.harness.commands.report import report
    from ropewalk.harness.reports._published import table_of
    from ropewalk.harness.runs.store import REPORTS

    if specs[0].published is not None:
        table_of(specs[0].published)
    with planned(specs) as (pairs, backend):
        for plan, _ in pairs:
            named = ("task", "scaling", "length")
            check(fail_if, {name: {getattr(cell, name) for cell in plan.cells} for name in named})
        if dry_run:
            return [summarize(*pair) for pair in pairs]
        done = measured(pairs, backend)
    place = done.folders[0] if len(specs) == 1 else done.folders[0].parent
    options: dict[str, Any] = {"task": specs[0].task, "mixed": len(done.folders) > 1}
    reports = report(done.folders, out=place / REPORTS, fail_if=fail_if, **options)
    return replace(done, reports=reports)


def run(model: Any = "reference", *, tokenizer: Any = None, **settings: Any) -> Run:
    """Measure a sweep, or continue it, and return it.

    ``model`` is a folder, a hub name, several of them, or a loaded model, then with its
    ``tokenizer``. ``scaling`` takes functions beside names and files: ``f(rope, length) ->
    Rotation`` (Frequencies, PerLayerFrequencies or Bands). The other settings are the flags of
    ``ropewalk run``: ``task``, ``length``, ``docs``, ``out``, ``seed``, … A setting that says how a
    model is opened (``dtype``, ``adapter``, …) raises an error beside a loaded one. Raises
    UserError, in one sentence, before any weight is read.
    """
    name, loaded = open_loaded(model, tokenizer, settings)
    specs = parse_all(None, {"model": name, **settings})
    with planned(specs, loaded) as (pairs, backend):
        return measured(pairs, backend)


def frame(
    folders: str | Path | Iterable[str | Path], tasks: Iterable[str] = (), *, losses: bool = False
) -> pd.DataFrame:
    """Return the frame of runs, read from their files alone: folders, or what ``to_parquet`` wrote.

    ``losses`` adds the loss of every token, or of every run of tokens, as a list. ``tasks`` are
    your own task files that the runs were measured with. Raises UserError where runs are not
    comparable.
    """
    from ropewalk.harness.runs.frame import make_frame
    from ropewalk.harness.runs.store import runs_in

    many = [folders] if isinstance(folders, str | Path) else folders
    table = make_frame(runs_in([Path(folder) for folder in many]), tasks)
    return table if losses else table.drop(columns="losses", errors="ignore")


@contextmanager
def patched(model: Any, rotation: Rotation) -> Iterator[Any]:
    """Run a loaded Hugging Face causal language model with what a method returned, and yield it.

    On exit the model is bit for bit what it was, also after an error. The rotation is that of one
    length: bands (methods that move positions) reach no further, prompt and new tokens together.
    Raises UserError, naming the model, where its rotary embedding cannot be replaced as a whole,
    and for a rotation that is the library's own stateful type.
    """
    from ropewalk.harness.patching import patch
    from ropewalk.scaling.types import Rotation

    if not isinstance(rotation, Rotation):
        raise UserError(
            f"patched takes what a method returns, not {type(rotation).__name__}: "
            "methods.yarn(rope_of(model.config), length, factor=4)."
        )
    if rotation.stateful:
        raise UserError(
            "this rotation is transformers' own stateful type: load the model with it instead."
        )
    with patch.patched(model, rotation):
        yield model


def open_loaded(
    model: Any, tokenizer: Any, settings: Mapping[str, Any]
) -> tuple[Any, Checkpoint | None]:
    """Return what the settings call the model, and the checkpoint of a model that is loaded."""
    if isinstance(model, str | Path | list | tuple):
        return model, None
    for name in BY_NAME:
        if settings.get(name) not in (None, Spec.model_fields[name].default):
            raise UserError(
                f"a loaded model is measured unchanged and in this process: leave out {name}."
            )
    from ropewalk.harness.models.checkpoint import hold

    loaded = hold(model, tokenizer, settings.get("trained_length"))
    return loaded.label, loaded


@contextmanager
def planned(
    specs: Sequence[Spec], loaded: Checkpoint | None = None
) -> Iterator[tuple[list[tuple[Plan, Path]], Backend]]:
    """Yield the plan and the run folder of each model, and the backend that measures them.

    ``loaded`` takes the place of names. Raises UserError for a model that cannot be measured.
    """
    from ropewalk.harness.reports._trackers import check_trackers
    from ropewalk.harness.runs.store import run_folders
    from ropewalk.harness.serve._launch import backend_for
    from ropewalk.harness.sweep.plan import make_plan

    with backend_for(specs[0]) as backend:
        check_trackers(specs[0].track)
        make = partial(make_plan, opening=backend.open, checkpoint=loaded)
        plans = [make(spec) for spec in specs]
        models = [plan.checkpoint.label for plan in plans]
        folders = run_folders(specs[0].out, models, several=len(specs) > 1)
        yield list(zip(plans, folders, strict=True)), backend


def measured(pairs: Sequence[tuple[Plan, Path]], backend: Backend) -> Run:
    """Measure what each folder lacks of its plan; a model that cannot be measured is left out.

    Raises UserError where no model is left.
    """
    from ropewalk.harness.plugins import names_code
    from ropewalk.harness.reports._trackers import tracking
    from ropewalk.harness.sweep.measure import Started, measure
    from ropewalk.harness.sweep.notes import note_plan, unnamed_cells
    from ropewalk.harness.sweep.progress import follow

    done: list[tuple[Plan, Path]] = []
    rejected: dict[str, UserError] = {}
    for plan, folder in pairs:
        try:
            if text := unnamed_cells(plan, folder):
                log.info(text)
            with tracking(plan, folder) as track:
                for event in follow(measure(plan, folder, backend)):
                    if isinstance(event, Started) and event.items:
                        note_plan(plan)
                    track(event)
            done.append((plan, folder))
        except UserError as error:
            rejected[plan.checkpoint.label] = error
    if not done:
        raise next(iter(rejected.values()))
    for name, why in rejected.items():
        log.warning(f"{name} is left out: {why}")
    return Run(
        folders=tuple(folder for _, folder in done),
        tasks=tuple(task for task in pairs[0][0].spec.task if names_code("task", task)),
        left_out=len(rejected),
    )
