"""Print a plan, and the samples without a number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from ropewalk.harness.api.run import PlanSummary
from ropewalk.harness.names import printable
from ropewalk.harness.sweep.measure import Failure
from ropewalk.harness.sweep.plan import Plan

MOST = 20  # lines about failures; a sweep can have thousands


def print_plan(plan: Plan, summary: PlanSummary, console: Console) -> None:
    """Print the cells of a plan, the samples left to measure, and the whole cost."""
    title = f"Plan for {printable(str(summary.folder))}"
    table = Table(box=box.SIMPLE, padding=0, title=title, title_justify="left")
    for name in ("task", "scaling"):
        table.add_column(name, no_wrap=True)
    for name in ("length", "window", "att.\nfactor", "samples", "left"):
        table.add_column(name, justify="right")
    table.add_column("frequencies", no_wrap=True)
    for cell in summary.cells:
        table.add_row(
            cell.task,
            cell.scaling,
            str(cell.length),
            f"{cell.relative_length:.3g}x",
            "–".join(dict.fromkeys(f"{end:.4g}" for end in cell.attention_factors)),
            str(cell.samples),
            str(cell.left) if cell.frequencies else "",
            cell.frequencies[:8] if cell.frequencies else "failed",
        )
    console.print(table)
    for note in summary.notes:
        console.print(printable(note), soft_wrap=True)
    for warning in summary.warnings:
        console.print(f"Warning: {printable(warning)}", style="bold yellow", soft_wrap=True)
    cost, rope = summary.cost, plan.checkpoint.rope
    if cost is None:
        console.print("Complete: nothing to measure.")
        return
    rotary = f"base {rope.base:g}" if rope.rotary_dim else "no rotary embedding"
    console.print(
        f"{summary.model}: {cost.parameters:,} parameters, {summary.dtype} on "
        f"{summary.device}, trained window {summary.trained_length:,} tokens, {rotary}."
        f"\nTo measure: {cost.samples:,} samples, {cost.tokens:,} tokens; "
        f"memory about {cost.bytes / 2**20:,.0f} MiB above the program itself.{_alone(plan)}",
    )


def _alone(plan: Plan) -> str:
    """Say whether threads or workers are the better use of several cores on this CPU."""
    spec, threads = plan.spec, torch.get_num_threads()
    count = spec.workers or threads
    if spec.cluster or plan.checkpoint.device != "cpu" or count == 1:
        return ""
    cost = f"{count} times the memory for weights, and start about 12 s later"
    gain = "on two cores they took 6 % less time after that"
    if spec.workers:
        return f"\n{count} workers take {cost} than one process; {gain}."
    return (
        f"\nOne process uses {threads} threads: the better choice for all but sweeps of hours. "
        f"--workers {threads} would take {cost}; {gain}."
    )


def print_failures(failed: Sequence[Failure], console: Console) -> None:
    """Print what has no number and why, one line per cell and reason."""
    samples: dict[tuple[str, str], list[str | None]] = {}
    for failure in failed:
        status = "" if failure.status == "failed" else f"{failure.status.replace('_', ' ')}: "
        reason = status + failure.reason
        named = f"{failure.scaling}, {failure.task}, {failure.length} tokens"
        samples.setdefault((named, reason), []).append(failure.unit)
    if failed:
        console.print("Without a number:")
    for (named, reason), units in list(samples.items())[:MOST]:
        some = ", ".join(unit for unit in units[:3] if unit) + (", …" if len(units) > 3 else "")
        console.print(f"  {named}{f' ({some})' if some else ''}: {reason}", soft_wrap=True)
    if len(samples) > MOST:
        console.print(f"  … and {len(samples) - MOST} more; samples.jsonl has every reason.")
