"""``ropewalk run``: measure a sweep and report it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from harness.commands._screen import COMPLETE, WITH_FAILURES, Many, Switch, err, screen
from harness.commands.report import write
from harness.folders import run_folders
from harness.offline import go_offline

if TYPE_CHECKING:
    from harness.plan import Plan
    from harness.sweep import Failure
    from harness.workers import Cluster


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
    from harness.spec import parse_all

    specs = parse_all(sweep, {name: value for name, value in flags.items() if value is not None})
    if specs[0].offline:
        go_offline()
    from harness import show
    from harness.cluster import connected
    from harness.plan import make_plan

    with connected(specs[0], _tell) as ray:
        with err.status("Reading config, tokenizer and documents"):
            elsewhere = ray.device if ray else None
            plans = [make_plan(spec, elsewhere=elsewhere) for spec in specs]
        folders = run_folders(specs[0].out, [plan.checkpoint.label for plan in plans])
        if dry_run:
            for plan, folder in zip(plans, folders, strict=True):
                show.plan(plan, folder, screen)
            return COMPLETE
        failed = [
            failure
            for plan, folder in zip(plans, folders, strict=True)
            for failure in _measure(plan, folder, ray)
        ]
    reports = folders[0] if len(folders) == 1 else folders[0].parent
    # Models of one sweep may have different tokenizers: then they stand apart, under a note.
    whole = write(folders, reports / "reports", None, plans[0].spec.task, mixed=len(folders) > 1)
    show.failures(failed, err)
    return WITH_FAILURES if failed or not whole else COMPLETE


def _measure(plan: Plan, folder: Path, ray: Cluster | None) -> list[Failure]:
    from harness import show
    from harness.sweep import measure

    show.left_out(plan, err)
    return measure(plan, folder, partial(show.progress, err), ray and ray.anew())


def _tell(sentence: str) -> None:
    err.print(sentence, highlight=False, markup=False)
