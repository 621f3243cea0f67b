"""``ropewalk run``: measure a sweep and report it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from harness.cli.console import COMPLETE, WITH_FAILURES, Many, Switch, err, screen
from harness.cli.report import write
from harness.errors import UserError
from harness.offline import go_offline

if TYPE_CHECKING:
    from harness.cluster.workers import Cluster
    from harness.sweep.measure import Failure
    from harness.sweep.plan import Plan

T = TypeVar("T")
R = TypeVar("R")


def run(
    sweep: Path | None = None,
    /,
    *,
    model: Many = None,
    revision: str | None = None,
    scaling: Many = None,
    task: Many = None,
    length: Many = None,
    docs: str | None = None,
    out: Path | None = None,
    seed: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    offline: Switch = None,
    max_memory: str | None = None,
    device_map: str | None = None,
    trust_remote_code: Switch = None,
    allow_pickle: Switch = None,
    workers: int | None = None,
    cluster: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a sweep: every scaling x task x length. The same command again goes on where it stopped.

    Args:
        sweep: A YAML file with the same settings, or a sweep that `list` names; flags win over it.
        model: Folders or hub names (NAME@REVISION); default: the embedded reference model.
        revision: Branch, tag or commit on the hub, of one model.
        scaling: Methods: NAME, NAME:option=value,… (grids: option=[4,8]) or your own .py file.
        task: Tasks: NAME, NAME:option=value,… or a path to your own .py file.
        length: Tokens: 512, 4k (4096) or 2x (twice the trained window).
        docs: A file, a folder, a glob, or DATASET:split=…,field=…; default: embedded documents.
        out: The run folder; default: results/run-MODEL. Of several models, the folder of theirs.
        seed: Seed of every random draw.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu, cuda, cuda:1, …
        offline: Ask the hub for nothing; what its cache holds will do.
        max_memory: Bytes that weights and work may take: 800MiB, 12GB; default: what is fastest.
        device_map: auto: one model over all GPUs, then memory, then disk (accelerate).
        trust_remote_code: Let code from the model's repository run.
        allow_pickle: Accept weights that are not safetensors.
        workers: Measure in so many processes, on Ray; on a GPU machine one a GPU.
        cluster: HOST:PORT of a Ray cluster to measure on, or auto; default: this machine.
        dry_run: Print the plan and its cost; read no weights and write nothing.
    """
    flags = {name: value for name, value in locals().items() if name not in ("sweep", "dry_run")}
    from harness.sweep.spec import parse_all

    specs = parse_all(sweep, {name: value for name, value in flags.items() if value is not None})
    if specs[0].offline:
        go_offline()
    from harness.cli import show
    from harness.cluster.connect import connected
    from harness.runs.folders import reports_of, run_folders
    from harness.sweep.plan import make_plan
    from harness.sweep.record import describe

    with connected(specs[0], _tell) as ray:
        with err.status("Reading config, tokenizer and documents"):
            elsewhere = ray.device if ray else None
            names = [spec.model for spec in specs]
            plans = _each(names, specs, partial(make_plan, elsewhere=elsewhere))
        labels = [plan.checkpoint.label for plan in plans]
        records = [describe(plan, None, measuring=False) for plan in plans]
        folders = run_folders(specs[0].out, records, several=len(specs) > 1)
        pairs = list(zip(plans, folders, strict=True))
        if dry_run:
            for plan, folder in pairs:
                show.plan(plan, folder, screen, _machine(plan, ray))
            return COMPLETE if len(pairs) == len(specs) else WITH_FAILURES
        done = _each(labels, pairs, lambda pair: (pair[1], _measure(*pair, ray)))
    folders, failed = [folder for folder, _ in done], [one for _, some in done for one in some]
    reports = folders[0] if len(specs) == 1 else folders[0].parent
    # Models of one sweep may have different tokenizers: then they stand apart, under a note.
    whole = write(folders, reports_of(reports), None, plans[0].spec.task, mixed=len(folders) > 1)
    show.failures(failed, err)
    return WITH_FAILURES if failed or not whole or len(done) < len(specs) else COMPLETE


def _each(names: Sequence[str], things: Sequence[T], work: Callable[[T], R]) -> list[R]:
    """Return what comes of each model; one that is refused is told at the end and left out.

    Raises UserError where no model is left.
    """
    done, refused = [], {}
    for name, thing in zip(names, things, strict=True):
        try:
            done.append(work(thing))
        except UserError as error:
            refused[name] = error
    if not done:
        raise next(iter(refused.values()))
    for name, told in refused.items():
        _tell(f"{name} is refused and left out: {told}")
    return done


def _measure(plan: Plan, folder: Path, ray: Cluster | None) -> list[Failure]:
    from harness.cli import show
    from harness.cli.progress import Measuring
    from harness.sweep.backend import ThisProcess
    from harness.sweep.measure import measure

    show.left_out(plan, err)
    watching = Measuring(err, plan, _machine(plan, ray))
    here = ThisProcess(plan.checkpoint.device, watching.passing)
    return measure(plan, folder, watching, ray.anew() if ray else here)


def _machine(plan: Plan, ray: Cluster | None) -> str:
    """Name what measures, for the rates that are known of it."""
    from harness.sweep.pace import this_machine

    if ray is None:
        return this_machine(plan.checkpoint.device)
    return f"{ray.count} workers of {ray.threads} threads, {ray.device}"


def _tell(sentence: str) -> None:
    err.print(sentence, highlight=False, markup=False)
