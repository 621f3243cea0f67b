"""``ropewalk report``: tables, figures and a page from the files of runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.cli.console import COMPLETE, TERMINAL, WITH_FAILURES, screen


def report(
    runs: Annotated[
        tuple[Path, ...], Parameter(help="Run folders; several are joined, also those in a folder.")
    ],
    /,
    *,
    report: Annotated[
        tuple[str, ...] | None,
        Parameter(
            consume_multiple=True,
            negative="",
            help="Which reports, or all; default: scores, best and curves.",
        ),
    ] = None,
    task: Annotated[
        tuple[str, ...] | None,
        Parameter(
            consume_multiple=True,
            negative="",
            help="Your own task files that the runs were measured with: only these are executed.",
        ),
    ] = None,
    out: Annotated[
        Path | None, Parameter(help="Where the files go; default: RUN/reports, for one run.")
    ] = None,
    page: Annotated[
        Path | None,
        Parameter(
            help="The page, one file with all charts and tables, to send; default: index.html "
            "beside the files of all reports."
        ),
    ] = None,
    mixed: Annotated[
        bool, Parameter(negative="", help="Set runs that are not comparable beside each other.")
    ] = False,
    together: Annotated[
        bool | None,
        Parameter(
            help="Compare models as methods, in one panel; default: where each has one method."
        ),
    ] = None,
    width: Annotated[
        str | None,
        Parameter(help="Of figures: page (7 inches, the default), column (3.3) or inches."),
    ] = None,
    style: Annotated[
        Path | None, Parameter(help="A Matplotlib style file, or a style it has, for figures.")
    ] = None,
    only: Annotated[
        tuple[str, ...] | None,
        Parameter(
            consume_multiple=True,
            negative="",
            help="The methods that figures show, in their order; tables have all.",
        ),
    ] = None,
    rename: Annotated[
        tuple[str, ...] | None,
        Parameter(
            consume_multiple=True,
            negative="",
            help="METHOD=NAME in figures: yarn:factor=4='YaRN 4×'. RUN/figures.toml has all "
            "this too, and order and colours.",
        ),
    ] = None,
) -> int:
    """Make the tables, figures and page of one or more runs from their files."""
    from harness.api.report import report as make_reports
    from harness.cli.outcome import print_chosen, print_files, print_whole
    from harness.reports._write import ALL

    reports = make_reports(
        runs,
        report=report,
        task=task or (),
        out=out,
        page=page,
        mixed=mixed,
        together=together,
        observer=TERMINAL,
        width=width,
        style=style,
        only=only,
        rename=rename,
    )
    (print_chosen if report and ALL not in report else print_whole)(reports, screen)
    print_files(reports, screen)
    return COMPLETE if reports.complete else WITH_FAILURES
