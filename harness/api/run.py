"""Plan a sweep, measure it or continue it, and read what was measured."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from ropewalk.harness.api.observer import LOG, Observer
from ropewalk.harness.api.report import Reports
from ropewalk.harness.api.settings import open_loaded, read_specs
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.names import nearest
from ropewalk.harness.plugins import load, names_code, parameters
from ropewalk.harness.reports import answer, best
from ropewalk.harness.reports._style import drawing
from ropewalk.harness.runs.frame import make_frame
from ropewalk.harness.runs.store import each_sample, measured, run_folders, runs_in
from ropewalk.harness.sweep.backend import Backend
from ropewalk.harness.sweep.measure import (
    Event,
    Failure,
    Started,
    Stored,
    backend_for,
    failures,
    measure,
)
from ropewalk.harness.sweep.memory import Cost, estimate
from ropewalk.harness.sweep.notes import doc_warnings, plan_notes, unnamed_cells
from ropewalk.harness.sweep.plan import Item, Plan, make_plan
from ropewalk.harness.sweep.record import describe
from ropewalk.harness.sweep.spec import Spec
from ropewalk.harness.trackers import check_trackers, tracking


@dataclass(frozen=True)
class PlannedCell:
    """One cell: ``left`` of its ``samples`` are to be measured, none without frequencies.

    ``attention_factors`` are the least and the greatest of the layers, ``frequencies`` the
    fingerprint of the rotation; both are empty where the method fails.
    """

    task: str
    scaling: str
    length: int
    relative_length: float
    attention_factors: tuple[float, ...]
    samples: int
    left: int
    frequencies: str | None


@dataclass(frozen=True)
class PlanSummary:
    """The plan of one model; ``cost`` is None where nothing is left to measure."""

    model: str
    folder: Path
    dtype: str
    device: str
    trained_length: int
    cells: tuple[PlannedCell, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    cost: Cost | None


def summarize(plan: Plan, folder: Path) -> PlanSummary:
    """Return what a plan measures and costs, less what its folder has.

    Raises UserError where the folder is another model's or another sweep's, as the run would.
    """
    unnamed = unnamed_cells(plan, folder)
    done, checkpoint = measured(each_sample(folder)), plan.checkpoint
    cells, seen = [], set(done)
    for cell in plan.cells:
        left = {Item(cell, question).key for question in cell.questions} - seen
        seen |= left
        sets = cell.rotation.frequency_sets() if cell.rotation else ()
        factors = [one.attention_factor for one in sets]
        cells.append(
            PlannedCell(
                task=cell.task,
                scaling=cell.scaling,
                length=cell.length,
                relative_length=cell.length / checkpoint.rope.trained_length,
                attention_factors=(min(factors), max(factors)) if factors else (),
                samples=len(cell.questions),
                left=len(left) if cell.rotation else 0,
                frequencies=cell.frequencies,
            )
        )
    work = plan.work(done)
    return PlanSummary(
        model=checkpoint.label,
        folder=folder,
        dtype=checkpoint.dtype,
        device=checkpoint.device,
        trained_length=checkpoint.rope.trained_length,
        cells=tuple(cells),
        notes=(*([unnamed] if unnamed else []), *plan_notes(plan)),
        warnings=tuple(doc_warnings(plan.documents)),
        cost=estimate(plan, done) if work else None,
    )


T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Run:
    """One or more run folders, and what is made of them.

    ``missing`` has every sample and cell without a number, ``failures`` their reasons.
    """

    folders: tuple[Path, ...]
    tasks: tuple[str, ...] = ()
    missing: tuple[Failure, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """Say why samples have no number, one sentence per reason."""
        return tuple(dict.fromkeys(failure.reason for failure in self.missing))

    def frame(self) -> pd.DataFrame:
        """Return one row per sample, with its cell's score (``results/README.md``)."""
        return make_frame(self.folders, self.tasks, mixed=len(self.folders) > 1)

    def _repr_html_(self) -> str:
        """Return the recommendations and the figure of ``best``, or why there are none."""
        frame = self.frame()
        try:
            table = best.make(frame)
            sentences = best.summary(table)
        except ValueError as error:
            return f"<p>{escape(str(error))}</p>"
        text = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
        text = re.sub("`(.+?)`", r"<code>\1</code>", text)
        with suppress(ValueError), drawing():  # fewer than two methods have no figure
            content = BytesIO()
            answer.make(frame).savefig(content, format="png")
            picture = base64.b64encode(content.getvalue()).decode()
            text += f'<img alt="Regret of each method" src="data:image/png;base64,{picture}">'
        return text

    def report(self, name: str, *, figure: bool = False, **options: Any) -> pd.DataFrame | Figure:
        """Return a report by name (``"curves"``, ``"best"``, …) or by path to a file of your own.

        Raises UserError for a name or an option that is unknown, and ValueError for a report that
        does not apply to what was measured. ``figure``: that of a report that has a table too.
        """
        report = load("report", name)
        known = parameters(report.module, "report")
        for option in options.keys() - known.keys():
            raise UserError(
                f"the report {name} has no option {option!r}; {nearest(option, known)}."
            )
        frame = self.frame()
        with drawing():
            result: pd.DataFrame | Figure = report.module.make(
                frame, **{**report.arguments, **options}
            )
            if figure and isinstance(result, pd.DataFrame):
                result = report.module.draw(frame, result)
        if isinstance(result, Figure):
            shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
            if shell is not None:  # a notebook draws only figures of pyplot, unless it is told to
                from IPython.core.pylabtools import select_figure_formats

                select_figure_formats(shell, {"png"})
        return result


@dataclass(frozen=True)
class MeasuredRun:
    """What was measured, and the reports of it."""

    run: Run
    reports: Reports


def frame(folders: str | Path | Iterable[str | Path], tasks: Iterable[str] = ()) -> pd.DataFrame:
    """Return the frame of runs, read from their files alone: folders, or what ``to_parquet`` wrote.

    ``tasks`` are your own task files that the runs were measured with. Raises UserError where runs
    are not comparable.
    """
    many = [folders] if isinstance(folders, str | Path) else folders
    return make_frame(runs_in([Path(folder) for folder in many]), tasks)


def run(
    model: Any = "reference",
    *,
    tokenizer: Any = None,
    observer: Observer = LOG,
    **settings: Any,
) -> Run:
    """Measure a sweep, or continue it, and return it.

    ``model`` is a folder, a hub name, several of them, or a loaded model, then with its
    ``tokenizer``. ``scaling`` takes functions beside names and files: ``f(rope, length) ->
    Rotation`` (Frequencies, PerLayerFrequencies or Bands). The other settings are the flags of
    ``ropewalk run``: ``task``, ``length``, ``docs``, ``out``, ``seed``, … A setting that says how a
    model is opened (``dtype``, ``adapter``, …) raises an error beside a loaded one. Raises
    UserError, in one sentence, before any weight is read.
    """
    name, loaded = open_loaded(model, tokenizer, settings)
    with planned(read_specs(None, {"model": name, **settings}), observer, loaded) as sweep:
        return sweep.measure()


@dataclass(frozen=True)
class Sweep:
    """The plan and the run folder of each model, and what measures them."""

    pairs: Sequence[tuple[Plan, Path]]
    backend: Backend
    observer: Observer

    def each(self, work: Callable[[Plan, Path], R]) -> list[R]:
        """Return the results of the models that raise no error; note which do.

        Raises UserError where every model does.
        """
        names = [plan.checkpoint.label for plan, _ in self.pairs]
        return _each(names, self.pairs, lambda pair: work(*pair), self.observer)

    def measure(self) -> Run:
        """Measure every plan into its folder; raise UserError where every model does."""

        def one(plan: Plan, folder: Path) -> tuple[Path, list[Failure]]:
            note_unnamed(plan, folder, self.observer)
            events = _noted(plan, measure(plan, folder, self.backend), self.observer)
            with tracking(plan, folder) as track:
                for event in self.observer.progress()(events):
                    track(event)
            return folder, list(failures(plan, folder))

        results = self.each(one)
        return Run(
            folders=tuple(folder for folder, _ in results),
            tasks=_own_tasks(self.pairs[0][0].spec),
            missing=tuple(failure for _, failures in results for failure in failures),
        )


@contextmanager
def planned(
    specs: Sequence[Spec], observer: Observer = LOG, loaded: Checkpoint | None = None
) -> Iterator[Sweep]:
    """Plan the sweep of each model, connected to the cluster; ``loaded`` takes the place of names.

    Raises UserError where no model is left.
    """
    with backend_for(specs[0]) as backend:
        check_trackers(specs[0].track)
        with observer.status("Reading config, tokenizer and documents"):
            make = partial(make_plan, elsewhere=backend.device, checkpoint=loaded)
            plans = _each([spec.model for spec in specs], specs, make, observer)
        records = [describe(plan) for plan in plans]
        folders = run_folders(specs[0].out, records, several=len(specs) > 1)
        usual = folders[0].with_name(f"run-{plans[0].checkpoint.label}")
        if specs[0].out is None and folders[0] != usual:
            observer.note(f"{usual} holds another sweep; this one goes to {folders[0]}.")
        yield Sweep(list(zip(plans, folders, strict=True)), backend, observer)


def note_plan(plan: Plan, observer: Observer) -> None:
    """Note what is special about a plan, its documents and its model."""
    for note in plan_notes(plan):
        observer.note(note)
    for warning in doc_warnings(plan.documents):
        observer.note(warning, warning=True)


def note_unnamed(plan: Plan, folder: Path, observer: Observer) -> None:
    """Note which cells of a folder's record are not in a plan.

    Raises UserError where the folder has a run of another model, or another sweep.
    """
    if text := unnamed_cells(plan, folder):
        observer.note(text)


def _noted(plan: Plan, events: Generator[Event], observer: Observer) -> Generator[Event]:
    """Note what is special about a plan before the first of its requests is computed.

    That takes the model's code, which a finished sweep does not need.
    """
    with closing(events):
        for event in events:
            if isinstance(event, Started) and event.items:
                note_plan(plan, observer)
            yield event


def measurer(
    folder: Path, observer: Observer, backend: Backend
) -> Callable[[Plan], Iterator[Mapping[str, Any]]]:
    """Return what measures plans of one model into a folder, and yields the stored samples."""
    progress = observer.progress()

    def samples(plan: Plan) -> Iterator[Mapping[str, Any]]:
        for event in progress(measure(plan, folder, backend)):
            if isinstance(event, Stored):
                yield event.sample

    return samples


def _each(
    names: Sequence[str], items: Sequence[T], work: Callable[[T], R], observer: Observer
) -> list[R]:
    results, rejected = [], {}
    for name, item in zip(names, items, strict=True):
        try:
            results.append(work(item))
        except UserError as error:
            rejected[name] = error
    if not results:
        raise next(iter(rejected.values()))
    for name, reason in rejected.items():
        observer.note(f"{name} is left out: {reason}")
    return results


def _own_tasks(spec: Spec) -> tuple[str, ...]:
    return tuple(given for given in spec.task if names_code("task", given))
