"""``ropewalk compare``: compare a run with a published table."""

from __future__ import annotations

from pathlib import Path

from harness.cli.console import COMPLETE, WITH_FAILURES, screen


def compare(
    run: Path,
    /,
    *,
    published: str | None = None,
    model: str | None = None,
    tuned: str | None = None,
    tolerance: float = 2.0,
    out: Path | None = None,
    mixed: bool = False,
) -> int:
    """Set a run beside a published table, value by value.

    Args:
        run: The run folder.
        published: The table: dca, lceg-pg19, pi-pg19, …; default: the one its sweep file names.
        model: Which model of the table; default: its only one, or the one of the run's name.
        tuned: Which training of the table's rows; default: those without.
        tolerance: Percent by which a value may differ and count as reproduced.
        out: Write the comparison there too, as CSV, Parquet, Markdown and LaTeX.
        mixed: Compare even with another protocol or trained length, and say so.
    """
    from harness.api.report import compare
    from harness.cli.tables import show

    result = compare(
        run,
        published=published,
        model=model,
        tuned=tuned,
        tolerance=tolerance,
        out=out,
        mixed=mixed,
    )
    show({result.title: result.display}, screen)
    for sentence in result.text:
        screen.print(sentence)
    for file in result.files:
        screen.print(f"  {file}", soft_wrap=True)
    return COMPLETE if result.reproduced else WITH_FAILURES
