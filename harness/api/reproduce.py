"""Measure a run again from its record, and compare the two sample by sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from harness.api.observer import LOG, Observer
from harness.api.run import keeping, measurer, note_unnamed
from harness.errors import UserError
from harness.names import resolved
from harness.runs.store import measured, outcomes
from harness.sweep.rerun import Outcome, compare, plan_again, surroundings


@dataclass(frozen=True)
class Reproduction:
    """The comparison of a run with its repetition in ``folder``.

    ``differences`` are those of the two surroundings: packages, device, commit.
    """

    folder: Path
    outcome: Outcome
    differences: tuple[str, ...]
    tolerance: float

    JSON = ("folder", "outcome", "differences", "tolerance", "reproduced", "text")

    @property
    def reproduced(self) -> bool:
        """Return whether every sample has a number in both, within the tolerance."""
        return not self.outcome.differing and self.outcome.largest <= self.tolerance

    @property
    def text(self) -> str:
        """Say how the two runs agree."""
        result = self.outcome
        text = f"{result.equal} of {result.samples} samples are equal bit for bit"
        if result.equal + len(result.differing) < result.samples:
            text += f"; others differ by up to {result.largest:.2g} of their value ({result.where})"
        if result.differing:
            first = result.differing[0]
            text += f"; {len(result.differing)} have another status or none, first {first}"
        verdict = "reproduced" if self.reproduced else f"not reproduced within {self.tolerance:g}"
        return f"{text}: {verdict}."


def reproduce(
    run: str | Path,
    *,
    out: str | Path | None = None,
    tolerance: float = 1e-4,
    run_code: bool = False,
    dry_run: bool = False,
    observer: Observer = LOG,
    **places: str | None,
) -> Reproduction | None:
    """Measure a run again from its record and compare; a dry run only checks the record.

    ``places`` say where the ``model``, ``adapter`` or ``docs`` lie now, and on which ``device`` to
    measure; ``run_code`` lets code that the record names run. Raises UserError where something is
    not what the record says.
    """
    if not 0 <= tolerance < math.inf:
        raise UserError(f"--tolerance must be 0 or more and finite, got {tolerance:g}.")
    run = Path(run)
    folder = Path(out) if out else Path("results") / f"reproduce-{resolved(run).name}"
    with observer.status("Reading record, config, tokenizer and documents"):
        moved = {name: place for name, place in places.items() if place}
        plan = plan_again(run, folder, moved, code=run_code)
    observer.note(
        f"The record of {run} is enough: model, tokenizer, documents, methods, tasks and every "
        "question are what they were."
    )
    note_unnamed(plan, folder, observer)
    if dry_run:
        return None
    total, left = (len(list(plan.left(done))) for done in (set(), measured(outcomes(folder))))
    if left < total:
        observer.note(
            f"{total - left} of {total} samples were in {folder} before: they are compared as they "
            "are, and not measured now."
        )
    with keeping([folder]):
        for _ in measurer(plan, folder, observer)(plan):
            pass
    return Reproduction(folder, compare(run, folder), tuple(surroundings(run, folder)), tolerance)
