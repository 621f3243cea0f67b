"""``ropewalk rerun``: check a run's record against today's inputs, and measure it again."""

from __future__ import annotations

from pathlib import Path

from harness.cli.console import COMPLETE, WITH_FAILURES, Terminal, screen


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
    run_code: bool = False,
    dry_run: bool = False,
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
    from harness.api.rerun import rerun

    result = rerun(
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
        return COMPLETE
    for difference in result.differences:
        screen.print(f"Differs: {difference}", soft_wrap=True)
    screen.print(result.text, soft_wrap=True)
    return COMPLETE if result.reproduced else WITH_FAILURES
