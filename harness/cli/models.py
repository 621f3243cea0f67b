"""Plan and measure the sweeps of several models: one that is refused costs the others nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from harness.backends.workers import Cluster, Workers
from harness.cli import show
from harness.cli.console import err, keeping, say, screen
from harness.cli.progress import Measuring
from harness.cli.tracking import check_tracker, tracked
from harness.errors import UserError
from harness.models.checkpoint import Checkpoint
from harness.plugins import names_code
from harness.runs.folders import run_folders
from harness.sweep.backend import ThisProcess
from harness.sweep.eta import this_machine
from harness.sweep.measure import Failure, measure
from harness.sweep.plan import Plan, make_plan
from harness.sweep.record import describe
from harness.sweep.spec import Spec

T = TypeVar("T")
R = TypeVar("R")


def planned(
    specs: Sequence[Spec], ray: Cluster | None = None, loaded: Checkpoint | None = None
) -> list[tuple[Plan, Path]]:
    """Return the plan of each model and its run folder; ``loaded`` is measured in place of names.

    Raises UserError where no model is left.
    """
    if specs[0].track:
        check_tracker(specs[0].track)
    elsewhere = ray.device if ray else None
    with err.status("Reading config, tokenizer and documents"):
        make = partial(make_plan, elsewhere=elsewhere, checkpoint=loaded)
        plans = _each([spec.model for spec in specs], specs, make)
    records = [describe(plan, None, measuring=False) for plan in plans]
    folders = run_folders(specs[0].out, records, several=len(specs) > 1)
    if specs[0].out is None:
        show.another_place(folders[0], plans[0].checkpoint.label, err)
    return list(zip(plans, folders, strict=True))


def shown(pairs: Sequence[tuple[Plan, Path]], ray: Cluster | None = None) -> int:
    """Print each plan; return how many of them a run would measure.

    Raises UserError where every model would be refused.
    """

    def one(pair: tuple[Plan, Path]) -> None:
        show.plan(*pair, screen, machine_of(pair[0], ray))

    return len(_each([plan.checkpoint.label for plan, _ in pairs], pairs, one))


def measured(
    pairs: Sequence[tuple[Plan, Path]],
    ray: Cluster | None = None,
    until_reported: ExitStack | None = None,
) -> list[tuple[Path, list[Failure]]]:
    """Measure each plan into its folder, with progress on stderr; return what has no number.

    A tracker is told of the end of a run, or, of one model, at the end of ``until_reported``, in
    which its reports are made. Raises UserError where every model is refused.
    """

    def one(pair: tuple[Plan, Path]) -> tuple[Path, list[Failure]]:
        plan, folder = pair
        show.left_out(plan, err)
        show.unnamed(plan, folder, err)
        return folder, measured_one(plan, folder, ray, until_reported)

    with keeping([folder for _, folder in pairs]):
        return _each([plan.checkpoint.label for plan, _ in pairs], pairs, one)


def measured_one(
    plan: Plan,
    folder: Path,
    ray: Cluster | None = None,
    until_reported: ExitStack | None = None,
) -> list[Failure]:
    """Measure a plan into its folder, with progress on stderr; return what has no number."""
    given, own = plan.spec.track, [one for one in plan.spec.task if names_code("task", one)]
    if until_reported is not None:
        until_reported.enter_context(tracked(given, folder, own))
        return measurer(plan, folder, ray)(plan)
    with tracked(given, folder, own):
        return measurer(plan, folder, ray)(plan)


def measurer(
    plan: Plan, folder: Path, ray: Cluster | None = None
) -> Callable[[Plan], list[Failure]]:
    """Return what measures plans of one model into a folder, one after the other.

    The weights are loaded once, when the first question is asked. ``replace(plan, only=keys)`` is
    a part of a plan.
    """
    watching = Measuring(err, plan, machine_of(plan, ray))
    backend = Workers(ray) if ray else ThisProcess(plan.checkpoint.device, watching.passing)

    def more(plan: Plan) -> list[Failure]:
        watching.plan = plan
        return measure(plan, folder, watching, backend)

    return more


def machine_of(plan: Plan, ray: Cluster | None) -> str:
    """Return a name of what measures, under which its rates are remembered."""
    if ray is None:
        return this_machine(plan.checkpoint.device)
    return f"{ray.count} workers of {ray.threads} threads, {ray.device}"


def _each(names: Sequence[str], things: Sequence[T], work: Callable[[T], R]) -> list[R]:
    """Return the results for the models that are not refused; say at the end which are."""
    done, refused = [], {}
    for name, thing in zip(names, things, strict=True):
        try:
            done.append(work(thing))
        except UserError as error:
            refused[name] = error
    if not done:
        raise next(iter(refused.values()))
    for name, reason in refused.items():
        say(f"{name} is refused and left out: {reason}")
    return done
