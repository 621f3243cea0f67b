"""The plan of a sweep as ``ropewalk run --dry-run`` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.harness.sweep.memory import Cost
    from ropewalk.harness.sweep.plan import Plan

COLUMNS = {  # of the table, each with its alignment
    "task": "left", "scaling": "left", "length": "right", "window": "right",
    "att.\nfactor": "right", "samples": "right", "left": "right", "frequencies": "left",
}  # fmt: skip


@dataclass(frozen=True)
class PlanSummary:
    """The plan of one model; ``cost`` is None where nothing is left to measure.

    Of the ``samples`` of a cell, ``left`` are to be measured, none where the method fails.
    ``attention_factors`` are the least and the greatest of its layers.
    """

    model: str
    folder: Path
    dtype: str
    device: str
    trained_length: int
    base: float | None
    cells: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    cost: Cost | None

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [
            (
                cell["task"], cell["scaling"], cell["length"], f"{cell['relative_length']:.3g}x",
                "–".join(dict.fromkeys(f"{end:.4g}" for end in cell["attention_factors"])),
                cell["samples"], cell["left"] if cell["frequencies"] else "",
                (cell["frequencies"] or "failed")[:8],
            )
            for cell in self.cells
        ]  # fmt: skip
        align = [*COLUMNS.values()]
        table = tabulate(rows, [*COLUMNS], "simple", colalign=align, disable_numparse=True)
        lines = [f"Plan for {self.folder}", table, *self.notes]
        lines += [f"Warning: {warning}" for warning in self.warnings]
        if self.cost is None:
            return "\n".join([*lines, "Complete: nothing to measure."])
        rotary = "no rotary embedding" if self.base is None else f"base {self.base:g}"
        lines.append(
            f"{self.model}: {self.cost.parameters:,} parameters, {self.dtype} on {self.device}, "
            f"trained window {self.trained_length:,} tokens, {rotary}."
        )
        line = f"To measure: {self.cost.samples:,} samples, {self.cost.tokens:,} tokens"
        if self.cost.bytes:  # none of a served model
            mib = self.cost.bytes / 2**20
            line += f"; memory about {mib:,.0f} MiB above the program itself"
        return "\n".join([*lines, f"{line}."])


def summarize(plan: Plan, folder: Path) -> PlanSummary:
    """Return what a plan measures and costs, less what its folder has.

    Raises UserError where the folder is another model's or another sweep's, as the run would.
    """
    from ropewalk.harness.runs.store import each_sample, measured
    from ropewalk.harness.sweep.memory import estimate
    from ropewalk.harness.sweep.notes import doc_warnings, plan_notes, unnamed_cells
    from ropewalk.harness.sweep.plan import Item

    unnamed = unnamed_cells(plan, folder)
    done, checkpoint = measured(each_sample(folder)), plan.checkpoint
    rope = checkpoint.rope
    cells, seen = [], set(done)
    for cell in plan.cells:
        left = {Item(cell, question).key for question in cell.questions} - seen
        seen |= left
        sets = cell.rotation.frequency_sets() if cell.rotation else ()
        factors = [frequencies.attention_factor for frequencies in sets]
        cells.append(
            {
                "task": cell.task,
                "scaling": cell.scaling,
                "length": cell.length,
                "relative_length": cell.length / rope.trained_length,
                "attention_factors": (min(factors), max(factors)) if factors else (),
                "samples": len(cell.questions),
                "left": len(left) if cell.rotation else 0,
                "frequencies": cell.frequencies,
            }
        )
    return PlanSummary(
        model=checkpoint.label,
        folder=folder,
        dtype=checkpoint.dtype,
        device=checkpoint.device,
        trained_length=rope.trained_length,
        base=rope.base if rope.rotary_dim else None,
        cells=tuple(cells),
        notes=(*([unnamed] if unnamed else []), *plan_notes(plan)),
        warnings=tuple(doc_warnings(plan.documents)),
        cost=estimate(plan, done) if plan.work(done) else None,
    )
