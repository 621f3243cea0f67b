"""``ropewalk run``: measure a sweep and report it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.commands._screen import COMPLETE, WITH_FAILURES, Many, Switch, err, screen, terminable
from harness.commands.report import write


def run(
    sweep: Path | None = None,
    /,
    *,
    model: str | None = None,
    revision: str | None = None,
    scaling: Many = None,
    task: Many = None,
    length: Many = None,
    docs: str | None = None,
    out: Path | None = None,
    seed: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    device_map: str | None = None,
    trust_remote_code: Switch = None,
    allow_pickle: Switch = None,
    workers: int | None = None,
    cluster: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a sweep: every scaling x task x length. The same command again goes on where it stopped.

    Args:
        sweep: A YAML file with the same settings; flags win over it.
        model: A folder or a hub name; default: the embedded reference model.
        revision: Branch, tag or commit on the hub.
        scaling: Methods: NAME, NAME:option=value,… or a path to your own .py file.
        task: Tasks: NAME, NAME:option=value,… or a path to your own .py file.
        length: Tokens: 512, 4k (4096) or 2x (twice the trained window).
        docs: A text file, a folder, or DATASET:split=…,field=…; default: embedded documents.
        out: The run folder; default: results/run-MODEL.
        seed: Seed of every random draw.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu, cuda, cuda:1, …
        device_map: auto: one model over all GPUs, then memory, then disk (accelerate).
        trust_remote_code: Let code from the model's repository run.
        allow_pickle: Accept weights that are not safetensors.
        workers: Measure in so many processes, on Ray; on a GPU machine one a GPU.
        cluster: HOST:PORT of a Ray cluster to measure on, or auto; default: this machine.
        dry_run: Print the plan and its cost; read no weights and write nothing.
    """
    flags = {name: value for name, value in locals().items() if name not in ("sweep", "dry_run")}
    from harness.spec import parse

    spec = parse(sweep, {name: value for name, value in flags.items() if value is not None})
    from harness import show
    from harness.cluster import crew
    from harness.plan import make_plan
    from harness.sweep import measure

    with crew(spec, _tell) as hands:
        with err.status("Reading config, tokenizer and documents"):
            plan = make_plan(spec, elsewhere=hands.device if hands else None)
        folder = spec.out or Path("results") / f"run-{plan.checkpoint.label}"
        if dry_run:
            show.plan(plan, folder, screen)
            return COMPLETE
        show.left_out(plan, err)
        with show.progress(plan, folder, err) as watch, terminable():
            failed = measure(plan, folder, watch, hands)
    whole = write([folder], folder / "reports", None)
    show.failures(failed, err)
    return WITH_FAILURES if failed or not whole else COMPLETE


def _tell(sentence: str) -> None:
    err.print(sentence, highlight=False, markup=False)
