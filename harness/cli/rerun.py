"""``ropewalk rerun``: check a run's record against today's inputs, and measure it again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from harness.cli.console import COMPLETE, WITH_FAILURES, err, keeping, screen
from harness.errors import UserError
from harness.names import resolved

if TYPE_CHECKING:
    from harness.sweep.reproduce import Outcome


def rerun(
    run: Path,
    /,
    *,
    out: Path | None = None,
    model: str | None = None,
    adapter: str | None = None,
    docs: str | None = None,
    device: str | None = None,
    tolerance: float = 1e-4,
    run_code: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Measure a run again from its record, and compare the two sample by sample.

    Args:
        run: The run folder. Its model, documents, methods and questions are held to its record, of
            which only the settings that decide a number are read.
        out: Where the second run goes; default: results/rerun-RUN.
        model: Where the model lies now, if it moved.
        adapter: Where its adapter lies now, if it moved.
        docs: Where the documents lie now, if they moved.
        device: Where to measure it now, if not where it was: cpu, cuda, cuda:1, …
        tolerance: Relative difference up to which two values of a sample count as equal.
        run_code: Let code that the record names run: method and task files, model repositories.
        dry_run: Only check that the record is enough; read no weights and write nothing.
    """
    if not 0 <= tolerance < math.inf:
        raise UserError(f"--tolerance must be 0 or more and finite, got {tolerance:g}.")
    from harness.cli.models import measured_one
    from harness.cli.show import unnamed
    from harness.runs.schema import outcomes
    from harness.runs.store import measured
    from harness.sweep.reproduce import compare, plan_again, surroundings

    folder = out or Path("results") / f"rerun-{resolved(run).name}"
    now = {"model": model, "adapter": adapter, "docs": docs, "device": device}
    places = {name: given for name, given in now.items() if given}
    with err.status("Reading record, config, tokenizer and documents"):
        plan = plan_again(run, folder, places, code=run_code)
    screen.print(
        f"The record of {run} is enough: model, tokenizer, documents, methods, tasks and every "
        "question are what they were.", highlight=False, soft_wrap=True,
    )  # fmt: skip
    unnamed(plan, folder, err)
    if dry_run:
        return COMPLETE
    whole, left = (len(list(plan.left(done))) for done in (set(), measured(outcomes(folder))))
    if left < whole:
        screen.print(
            f"{whole - left} of {whole} samples were in {folder} before: they are compared as they "
            "are, and not measured now.", highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    with keeping([folder]):
        measured_one(plan, folder)
    found = compare(run, folder)
    for difference in surroundings(run, folder):
        screen.print(f"Differs: {difference}", highlight=False, markup=False, soft_wrap=True)
    return _tell(found, tolerance)


def _tell(found: Outcome, tolerance: float) -> int:
    """Say how the two runs agree; the exit status is 1 where they do not."""
    text = f"{found.equal} of {found.samples} samples are equal bit for bit"
    if found.equal + len(found.unlike) < found.samples:
        text += f"; others differ by up to {found.largest:.2g} of their value ({found.where})"
    if found.unlike:
        text += f"; {len(found.unlike)} have another status or none, first {found.unlike[0]}"
    agree = not found.unlike and found.largest <= tolerance
    verdict = "reproduced" if agree else f"not reproduced within {tolerance:g}"
    screen.print(f"{text}: {verdict}.", highlight=False, markup=False, soft_wrap=True)
    return COMPLETE if agree else WITH_FAILURES
