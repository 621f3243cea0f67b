"""Print a plan, and the samples without a number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from harness.inspection.notes import plan_notes, unnamed_cells, warnings
from harness.names import printable
from harness.runs.store import measured, outcomes
from harness.sweep.eta import initial_eta
from harness.sweep.measure import Failure
from harness.sweep.memory import estimate
from harness.sweep.plan import Item, Plan
from scaling.types import Rotation

MOST = 20  # lines about failures; a sweep can have thousands


def print_plan(plan: Plan, folder: Path, console: Console, machine: str) -> None:
    """Print the cells of a plan, the samples left to measure, and the whole cost.

    Raises UserError where the folder is another model's or another sweep's, as the run would.
    """
    unnamed = unnamed_cells(plan, folder)
    done = measured(outcomes(folder))
    title = f"Plan for {printable(str(folder))}"
    table = Table(box=box.SIMPLE, padding=0, title=title, title_justify="left")
    for name in ("task", "scaling"):
        table.add_column(name, no_wrap=True)
    for name in ("length", "window", "att.\nfactor", "samples", "left"):
        table.add_column(name, justify="right")
    table.add_column("frequencies", no_wrap=True)
    seen, checkpoint = set(done), plan.checkpoint
    trained = checkpoint.rope.trained_length
    for cell in plan.cells:
        left = {Item(cell, question).key for question in cell.questions} - seen
        seen |= left
        table.add_row(
            cell.task,
            cell.scaling,
            str(cell.length),
            f"{cell.length / trained:.3g}x",
            _factor(cell.rotation) if cell.rotation else "",
            str(len(cell.questions)),
            str(len(left)) if cell.rotation else "",
            cell.frequencies[:8] if cell.frequencies else "failed",
        )
    console.print(table)
    for note in (*([unnamed] if unnamed else []), *plan_notes(plan)):
        console.print(printable(note), soft_wrap=True)
    for warning in warnings(plan):
        console.print(f"Warning: {printable(warning)}", style="bold yellow", soft_wrap=True)
    work = plan.work(done)
    if not work:
        console.print("Complete: nothing to measure.")
        return
    cost, rope = estimate(plan, done), checkpoint.rope
    rotary = f"base {rope.base:g}" if rope.rotary_dim else "no rotary embedding"
    console.print(
        f"{checkpoint.label}: {cost.parameters:,} parameters, {checkpoint.dtype} on "
        f"{checkpoint.device}, trained window {trained:,} tokens, {rotary}."
        f"\nTo measure: {cost.samples:,} samples, {cost.tokens:,} tokens; "
        f"memory about {cost.bytes / 2**20:,.0f} MiB above the program itself; "
        f"time {initial_eta(plan, work, machine).estimate()}.{_alone(plan)}",
    )


def _factor(rotation: Rotation) -> str:
    """Return the attention factor; where layers differ, the least and the greatest."""
    factors = [one.attention_factor for one in rotation.frequency_sets()]
    return "–".join(dict.fromkeys(f"{end:.4g}" for end in (min(factors), max(factors))))


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
        cell = failure.cell
        named = f"{cell.scaling}, {cell.task}, {cell.length} tokens"
        samples.setdefault((named, reason), []).append(failure.unit)
    if failed:
        console.print("Without a number:")
    for (named, reason), units in list(samples.items())[:MOST]:
        some = ", ".join(unit for unit in units[:3] if unit) + (", …" if len(units) > 3 else "")
        console.print(f"  {named}{f' ({some})' if some else ''}: {reason}", soft_wrap=True)
    if len(samples) > MOST:
        console.print(f"  … and {len(samples) - MOST} more; samples.jsonl has every reason.")
