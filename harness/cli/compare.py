"""``ropewalk compare``: compare two runs, or a run with a published table."""

from __future__ import annotations

from pathlib import Path

from ropewalk.harness.cli.console import COMPLETE, TERMINAL, WITH_FAILURES, Done, screen
from ropewalk.harness.cli.output import command


@command
def compare(
    run: Path,
    other: Path | None = None,
    /,
    *,
    published: str | None = None,
    model: str | None = None,
    tuned: str | None = None,
    tolerance: float | None = None,
    mixed: bool = False,
    task: tuple[str, ...] | None = None,
    out: Path | None = None,
) -> Done:
    """Compare two runs cell by cell on the same documents, or a run with a published table.

    The runs may be of two models. They may also be of one model before and after a change to it, to
    a package or to the machine. For every cell that both runs have, the table shows the second
    minus the first.

    Args:
        run: A run folder.
        other: The run folder to compare it with.
        published: Compare one run with this table instead: dca, lceg-pg19, pi-pg19, …; exit
            status 1 if a value is outside the tolerance.
        model: A model of the table. [default: its only one, or the one with the run's name]
        tuned: A training that the table names: use the rows with it. [default: rows without]
        tolerance: Percent by which a value may differ and count as reproduced. [default: 2]
        mixed: Compare with a table of another protocol or trained length too, with a warning.
        task: Your own task files that the runs were measured with: only these are executed.
        out: Write the comparison there too, as CSV, Parquet, Markdown and LaTeX.
    """
    from ropewalk.harness.api.compare import PublishedComparison
    from ropewalk.harness.api.compare import compare as compare_runs
    from ropewalk.harness.cli.tables import print_sentences, show

    result = compare_runs(
        run,
        other,
        published=published,
        model=model,
        tuned=tuned,
        tolerance=tolerance,
        mixed=mixed,
        task=task or (),
        out=out,
    )
    if isinstance(result, PublishedComparison) and published is None:
        TERMINAL.note(
            f"from the next version on, this is ropewalk compare RUN --published "
            f"{result.published}.",
            warning=True,
        )
    show(result.display, screen)
    print_sentences(result.text, screen)
    for file in result.files:
        screen.print(f"  {file}", soft_wrap=True)
    failed = isinstance(result, PublishedComparison) and not result.reproduced
    return Done(result, WITH_FAILURES if failed else COMPLETE)
