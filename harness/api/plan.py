"""What a sweep would measure, and what it would cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.data.data_warnings import warnings
from harness.inspection.notes import plan_notes, unnamed_cells
from harness.runs.store import measured, outcomes
from harness.sweep.eta import initial_eta
from harness.sweep.memory import Cost, estimate
from harness.sweep.plan import Item, Plan


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
    """The plan of one model; ``cost`` and ``time`` are None where nothing is left to measure."""

    model: str
    folder: Path
    dtype: str
    device: str
    trained_length: int
    cells: tuple[PlannedCell, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    cost: Cost | None
    time: str | None


def summarize(plan: Plan, folder: Path, machine: str) -> PlanSummary:
    """Return what a plan measures and costs, less what its folder has.

    Raises UserError where the folder is another model's or another sweep's, as the run would.
    """
    unnamed = unnamed_cells(plan, folder)
    done, checkpoint = measured(outcomes(folder)), plan.checkpoint
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
        warnings=tuple(warnings(plan.documents)),
        cost=estimate(plan, done) if work else None,
        time=initial_eta(plan, work, machine).estimate() if work else None,
    )
