"""``ropewalk run``: measure a sweep and report it."""

from __future__ import annotations

from collections.abc import Sequence
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
    trust_remote_code: Switch = None,
    allow_pickle: Switch = None,
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
        trust_remote_code: Let code from the model's repository run.
        allow_pickle: Accept weights that are not safetensors.
        dry_run: Print the plan and its cost; read no weights and write nothing.
    """
    flags = {name: value for name, value in locals().items() if name not in ("sweep", "dry_run")}
    from harness.spec import parse_all

    specs = parse_all(sweep, {name: value for name, value in flags.items() if value is not None})
    if specs[0].offline:
        go_offline()
    from harness import show
    from harness.plan import make_plan

    with err.status("Reading config, tokenizer and documents"):
        plans = [make_plan(spec) for spec in specs]
    folders = run_folders(specs[0].out, [plan.checkpoint.label for plan in plans])
    if dry_run:
        for plan, folder in zip(plans, folders, strict=True):
            show.plan(plan, folder, screen)
        return COMPLETE
    return _measure_all(plans, folders)


def _measure_all(plans: Sequence[Plan], folders: Sequence[Path]) -> int:
    """Measure one model after the other, then report them together."""
    statuses = [_measure(plan, folder) for plan, folder in zip(plans, folders, strict=True)]
    reports = folders[0] if len(folders) == 1 else folders[0].parent
    write(list(folders), reports / "reports", None, plans[0].spec.task)
    return max(statuses)


def _measure(plan: Plan, folder: Path) -> int:
    from harness import show
    from harness.sweep import measure

    show.left_out(plan, err)
    failed = measure(plan, folder, partial(show.progress, err))
    return WITH_FAILURES if failed else COMPLETE
