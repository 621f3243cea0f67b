"""``ropewalk report``: tables and figures from the files of runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.commands._screen import COMPLETE, WITH_FAILURES, err, screen
from harness.errors import UserError


def report(
    runs: Annotated[tuple[Path, ...], Parameter(help="Run folders; several are joined.")],
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
) -> int:
    """Make the tables and figures of one or more runs from their files."""
    if len(runs) > 1 and out is None:
        message = "several runs are joined: say with --out where their tables and figures go."
        raise UserError(message)
    whole = write(list(runs), out or runs[0] / "reports", report, task or ())
    return COMPLETE if whole else WITH_FAILURES


def write(
    runs: list[Path], folder: Path, chosen: tuple[str, ...] | None, tasks: tuple[str, ...] = ()
) -> bool:
    """Write the reports of these runs, and show the table and where the files are.

    ``tasks`` are those whose code may run beside the built-in ones: a record alone runs none.
    Returns whether every task could score what was measured; where one could not, it says why.
    """
    with err.status("Making tables and figures"):
        from harness.frame import make_frame
        from harness.report import show, write_reports

        frame = make_frame(runs, tasks)
        files, skipped = write_reports(frame, folder, chosen)
    show(frame, screen)
    for name, reason in skipped.items():
        screen.print(f"No {name}: {reason}", highlight=False, markup=False)
    unscored = frame.loc[(frame["status"] == "failed") & frame["value"].notna(), "reason"].unique()
    for reason in unscored:
        screen.print(f"No score: {reason}", highlight=False, markup=False, soft_wrap=True)
    screen.print("Tables and figures:", highlight=False)
    for file in files:
        screen.print(f"  {file}", highlight=False, soft_wrap=True)
    return not len(unscored)
