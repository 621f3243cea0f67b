"""``ropewalk report``: tables, figures and a page from the files of runs alone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from harness.cli.console import COMPLETE, WITH_FAILURES, err, screen
from harness.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from harness.reports._figures import Figures

PAGE = "index.html"
T = TypeVar("T")


def report(
    runs: Annotated[
        tuple[Path, ...], Parameter(help="Run folders; several are joined, also those in a folder.")
    ],
    /,
    *,
    report: Annotated[
        tuple[str, ...] | None, Parameter(consume_multiple=True, negative="", help="Which reports.")
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
    from harness.reports._figures import asked
    from harness.runs.folders import reports_of, runs_in

    found = runs_in(runs)
    if len(runs) > 1 and out is None and page is None:
        raise UserError(
            "several runs are joined: say with --out where their tables and figures go, or with "
            "--page where a page of them goes."
        )
    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--page {page}: name a file that ends in .html.")
    flags = {"width": width, "style": style, "only": only, "rename": rename}
    figures = asked(runs[0], flags)
    folder = out or (reports_of(runs[0]) if len(runs) == 1 else None)
    whole = write(
        found, folder, report, task or (), mixed=mixed, together=together, page=page,
        figures=figures,
    )  # fmt: skip
    return COMPLETE if whole else WITH_FAILURES


def uncollected(read: Callable[[], T]) -> T:
    """Return what is read without the collector, whose every pass looks at all that stays."""
    gc.disable()
    try:
        return read()
    finally:
        gc.freeze()
        gc.enable()


def write(
    runs: list[Path],
    folder: Path | None,
    chosen: tuple[str, ...] | None,
    tasks: tuple[str, ...] = (),
    *,
    mixed: bool = False,
    together: bool | None = None,
    page: Path | None = None,
    brief: bool = False,
    figures: Figures | None = None,
) -> bool:
    """Write the reports of these runs and their page, and show what they say and where they are.

    ``tasks`` are those whose code may run beside the built-in ones: a record alone runs none.
    ``together``: models are compared as methods; None: where each has one method.
    The page of all reports is made in any case, that of chosen ones where it is named. ``brief``:
    what is shown fits on a screen. ``figures`` say how these are drawn, or the file beside a run.
    Returns whether every task and report could do its part; where one could not, it says why.
    """
    with err.status("Making tables and figures"):
        from harness.cli import outcome
        from harness.reports._figures import asked, paper
        from harness.reports._write import write_reports
        from harness.reports.page.write import write_page
        from harness.runs.comparable import raw_text, reasons, unpaired
        from harness.runs.frame import make_frame
        from harness.runs.store import read_run

        frame = uncollected(lambda: make_frame(runs, tasks, mixed=mixed))
        frame = compared(frame, together)
        records = {run: read_run(run) for run in runs}
        unlike = reasons(records)
        notes = [f"Not comparable: {'; '.join(unlike)}."] if unlike else []
        note = " ".join([*(notes or unpaired(records)), *raw_text(records.values())])
        drawn = paper(figures or asked(runs[0], {}), frame)
        written = write_reports(frame, folder, chosen, note, drawn)
        if page is None and folder is not None and chosen is None:
            page = folder / PAGE
        if page is not None:
            write_page(page, frame, list(records.values()), written.tables, note)
    if note:
        screen.print(note, style="bold", highlight=False)
    if brief:
        outcome.brief(frame, written, screen)
    elif chosen:
        outcome.chosen(written, screen)
    else:
        outcome.whole(frame, written, screen)
    unscored = outcome.unscored(frame, screen)
    if brief:
        outcome.rest(page, runs, screen)
    else:
        outcome.files(written, page, screen)
    return not (unscored or written.failed)


def compared(frame: pd.DataFrame, asked: bool | None) -> pd.DataFrame:
    """Return the samples of several models as those of methods, where that is asked or evident."""
    from harness.stats.checkpoints import as_methods

    methods = frame.groupby("model")["scaling"].nunique()
    if asked is False or (asked is None and (len(methods) == 1 or methods.max() > 1)):
        return frame
    try:
        return as_methods(frame)
    except ValueError as error:
        if asked is None:
            return frame
        raise UserError(f"--together: {error}.") from None
