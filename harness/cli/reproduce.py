"""``ropewalk reproduce``: check a run's record against today's inputs, and measure it again."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

from harness.cli.console import COMPLETE, TERMINAL, WITH_FAILURES, Done, Terminal, screen
from harness.cli.output import command


@command
def reproduce(
    run: Path,
    /,
    *,
    out: Path | None = None,
    model: str | None = None,
    adapter: str | None = None,
    docs: str | None = None,
    device: str | None = None,
    tolerance: float = 1e-4,
    run_code: bool = False,
    dry_run: bool = False,
) -> Done:
    """Measure a run again from its record, and compare the two sample by sample.

    Args:
        run: The run folder. Its model, documents, methods and questions must be those of its
            record.
        out: Where the second run goes. [default: results/reproduce-RUN]
        model: Where the model is now, if it moved.
        adapter: Where its adapter is now, if it moved.
        docs: Where the documents are now, if they moved.
        device: Where to measure it now, if not where it was: cpu, cuda, cuda:1, …
        tolerance: Relative difference up to which two values of a sample count as equal.
        run_code: Let code that the record names run: method and task files, model repositories.
        dry_run: Only check that the record is enough; read no weights and write nothing.
    """
    from harness.api.reproduce import reproduce as measure_again

    result = measure_again(
        run,
        out=out,
        tolerance=tolerance,
        run_code=run_code,
        dry_run=dry_run,
        observer=Terminal(screen),
        model=model,
        adapter=adapter,
        docs=docs,
        device=device,
    )
    if result is None:
        return Done(None)
    for difference in result.differences:
        screen.print(f"Differs: {difference}", soft_wrap=True)
    screen.print(result.text, soft_wrap=True)
    return Done(result, COMPLETE if result.reproduced else WITH_FAILURES)


@wraps(reproduce)
def rerun(*arguments: Any, **options: Any) -> int:
    """Warn of the old name of ``reproduce``, and do it."""
    TERMINAL.note("from the next version on, this is ropewalk reproduce RUN.", warning=True)
    return reproduce(*arguments, **options)
