"""Print a plan, and the samples without a number, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from harness.data import data_warnings
from harness.inspection.notes import notes
from harness.names import printable
from harness.runs.schema import outcomes
from harness.runs.store import measured
from harness.sweep.cells import Batch, Cell, Item
from harness.sweep.eta import before
from harness.sweep.measure import Failure, records
from harness.sweep.memory import estimate
from harness.sweep.plan import Plan
from scaling.types import Rotation

MOST = 20  # lines about failures; a sweep can have thousands


def plan(plan: Plan, folder: Path, console: Console, machine: str) -> None:
    """Print the cells of a plan, the samples left to measure, and the whole cost.

    Raises UserError where the folder is another model's or another sweep's, as the run would.
    """
    unnamed(plan, folder, console)
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
    left_out(plan, console)
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
        f"time {_time(plan, work, machine)}.{_alone(plan)}",
        highlight=False,
    )


def unnamed(plan: Plan, folder: Path, console: Console) -> None:
    """Say which cells of a folder's record are not in a plan, so that reports lose them.

    Raises UserError where the folder has a run of another model, or another sweep.
    """
    before, now = records(plan, folder)
    named = {_place(cell) for cell in now["cells"]}
    gone = [cell for cell in (before or now)["cells"] if _place(cell) not in named]
    if gone:
        first, count = gone[0], f"{len(gone)} cell{'s' * (len(gone) > 1)}"
        told = (
            f"{folder} has {count} that this sweep does not name, as {first['scaling']}, "
            f"{first['task']}, {first['length']} tokens: the samples stay, and reports are without "
            "them until a sweep names them again."
        )
        console.print(printable(told), highlight=False, markup=False, soft_wrap=True)


def _place(cell: Mapping[str, Any]) -> tuple[str, str, int]:
    return cell["scaling"], cell["task"], cell["length"]


def _factor(found: Rotation) -> str:
    """Return the attention factor; where layers differ, the least and the greatest."""
    factors = [one.attention_factor for one in found.frequency_sets()]
    return "–".join(dict.fromkeys(f"{end:.4g}" for end in (min(factors), max(factors))))


def _time(plan: Plan, work: Sequence[Batch], machine: str) -> str:
    return before(plan, work, machine).estimate()


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


def left_out(plan: Plan, console: Console) -> None:
    """Print what is left out, what the checkpoint ships and which layers are scaled."""
    for reason in dict.fromkeys(cell.failed for cell in plan.cells if cell.failed):
        console.print(f"Its cells fail: {reason}", highlight=False, markup=False, soft_wrap=True)
    questions = [question for cell in plan.cells for question in cell.questions]
    # All documents of a stream are read, though no window may begin in the last of them.
    units = {q.unit for q in questions if q.facts.get("protocol") != "overlap"}
    # Documents that no question is named after are filler, not too short.
    named = {d.get("docs") for d in plan.documents if d["name"] in units}
    asked = [d["name"] for d in plan.documents if d.get("docs") in named]
    short = [name for name in asked if name not in units]
    if short:
        count = f"{len(short)} of {len(asked)} documents"
        told = f"{count} hold no window of {max(plan.lengths)} tokens and are left out: "
        some = ", ".join(short[:5]) + (", …" if len(short) > 5 else "")
        console.print(told + some, highlight=False, markup=False)
    for note in data_warnings.notes(plan.documents, plan.left_out):
        console.print(note, highlight=False, markup=False)
    warnings(plan, console)
    model = plan.checkpoint
    if getattr(model.tokenizer, "chat_template", None):
        raw = [task.label for task in plan.tasks if not task.options.get("chat")]
        where = f" in {', '.join(raw)}" if len(raw) < len(plan.tasks) else ""
        if raw:
            told = (
                f"{model.label} has a chat template, which is not applied{where}: the text is raw."
            )
            console.print(told, highlight=False, markup=False)
    trusted = model.trust_remote_code
    found = notes(model.label, model.config, plan.methods, plan.lengths, trust_remote_code=trusted)
    for note in found:
        console.print(note, highlight=False, markup=False)


def warnings(plan: Plan, console: Console) -> None:
    """Say what makes scores of the documents mean something else than they seem."""
    for warning in data_warnings.warnings(plan.documents):
        console.print(f"Warning: {warning}", style="bold yellow", highlight=False, markup=False)


def another_place(folder: Path, model: str, console: Console) -> None:
    """Say that the default folder of a model holds another sweep, where this one goes elsewhere."""
    first = folder.with_name(f"run-{model}")
    if folder != first:
        console.print(f"{first} holds another sweep; this one goes to {folder}.", soft_wrap=True)


def failures(failed: Sequence[Failure], console: Console) -> None:
    """Print what has no number and why, one line per cell and reason."""
    samples: dict[tuple[str, str], list[str | None]] = {}
    for failure in failed:
        status = "" if failure.status == "failed" else f"{failure.status.replace('_', ' ')}: "
        told = status + failure.reason
        samples.setdefault((_named(failure.cell), told), []).append(failure.unit)
    if failed:
        console.print("Without a number:", highlight=False)
    for (cell, told), units in list(samples.items())[:MOST]:
        named = ", ".join(unit for unit in units[:3] if unit) + (", …" if len(units) > 3 else "")
        text = f"  {cell}{f' ({named})' if named else ''}: {told}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    if len(samples) > MOST:
        console.print(f"  … and {len(samples) - MOST} more; samples.jsonl has every reason.")


def _named(cell: Cell) -> str:
    return f"{cell.scaling}, {cell.task}, {cell.length} tokens"
