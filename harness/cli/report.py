"""``ropewalk report``: tables, figures and a page from the files of runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ropewalk.harness.cli.console import TERMINAL, Done, err, screen
from ropewalk.harness.cli.output import command
from ropewalk.harness.cli.settings import OUTPUT, FailIf, Out


@command
def report(
    runs: tuple[Path, ...],
    /,
    *,
    report: tuple[str, ...] | None = None,
    task: tuple[str, ...] | None = None,
    out: Out = None,
    page: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    card: bool = False,
    mixed: bool = False,
    together: Annotated[bool | None, Parameter(negative=None)] = None,
    width: Literal["page", "column"] = "page",
    style: str | None = None,
    fail_if: FailIf = None,
) -> Done:
    """Make the tables, figures and page of one or more runs from their files.

    Args:
        runs: Run folders, or a folder of runs; several runs are joined.
        report: Which reports, or all. [default: scores, best and curves]
        task: Your own task files that the runs were measured with: only these are executed.
        out: Where the files go. [default: RUN/reports, for one run]
        page: The page, one file with all charts and tables, to send. [default: index.html beside
            the files of all reports]
        card: Write card.md too, a section for the README of a model: the answer, the scores and
            model-index metadata.
        mixed: Show runs side by side that are not comparable.
        together: Compare models as methods, in one panel. [default: if each has one method]
        width: Figures are 7 inches wide as a page, or 3.3 as a column of a paper.
        style: A style of Matplotlib, or its file.
        fail_if: As for `ropewalk run`.
    """
    from ropewalk.harness.api.report import report as make_reports
    from ropewalk.harness.cli.outcome import print_conditions, print_files, print_tables, status_of
    from ropewalk.harness.reports._write import ALL

    reports = make_reports(
        runs,
        report=report,
        task=task or (),
        out=out,
        page=page,
        card=card,
        mixed=mixed,
        together=together,
        observer=TERMINAL,
        width=width,
        style=style,
        fail_if=fail_if or (),
    )
    print_tables(reports, screen, chosen=bool(report and ALL not in report))
    print_files(reports, screen)
    print_conditions(reports, err if screen.quiet else screen)
    return Done(reports, status_of(reports, complete=reports.complete))
