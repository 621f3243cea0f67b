"""``ropewalk report``: tables and figures from the files of runs alone."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.cli.console import COMPLETE, WITH_FAILURES, err, screen
from harness.errors import UserError
from harness.names import printable

VERDICT = "best"  # the report that answers what a sweep is made for; its words are first


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
    mixed: Annotated[
        bool, Parameter(negative="", help="Set runs that are not comparable beside each other.")
    ] = False,
) -> int:
    """Make the tables and figures of one or more runs from their files."""
    from harness.runs.folders import reports_of, runs_in

    found = runs_in(runs)
    if len(runs) > 1 and out is None:
        message = "several runs are joined: say with --out where their tables and figures go."
        raise UserError(message)
    whole = write(found, out or reports_of(runs[0]), report, task or (), mixed=mixed)
    return COMPLETE if whole else WITH_FAILURES


def write(
    runs: list[Path],
    folder: Path,
    chosen: tuple[str, ...] | None,
    tasks: tuple[str, ...] = (),
    *,
    mixed: bool = False,
) -> bool:
    """Write the reports of these runs, and show the table and where the files are.

    ``tasks`` are those whose code may run beside the built-in ones: a record alone runs none.
    Returns whether every task and report could do its part; where one could not, it says why.
    """
    with err.status("Making tables and figures"):
        from harness.runs.comparable import raw_text, reasons, unpaired
        from harness.runs.frame import make_frame
        from harness.runs.store import read_run
        from harness.runs.write import print_skipped, print_words, show, write_reports

        frame = make_frame(runs, tasks, mixed=mixed)
        records = {run: read_run(run) for run in runs}
        unlike = reasons(records)
        notes = [f"Not comparable: {'; '.join(unlike)}."] if unlike else []
        note = " ".join([*(notes or unpaired(records)), *raw_text(records.values())])
        written = write_reports(frame, folder, chosen, note)
    if note:
        screen.print(note, style="bold", highlight=False)
    verdict = {name: words for name, words in written.words.items() if name == VERDICT}
    print_words(verdict, screen)
    show(frame, screen)
    rest = {name: words for name, words in written.words.items() if name not in verdict}
    print_words(rest, screen)
    print_skipped(written, screen)
    unscored = frame.loc[(frame["status"] == "failed") & frame["value"].notna(), "reason"].unique()
    for reason in unscored:
        screen.print(f"No score: {reason}", highlight=False, markup=False, soft_wrap=True)
    screen.print("\nTables and figures:", highlight=False)
    for stem, files in groupby(written.files, lambda file: file.with_suffix("")):
        first, *others = (file.suffix for file in files)
        names = " ".join([f"{printable(str(stem))}{first}", *others])
        screen.print(f"  {names}", highlight=False, soft_wrap=True)
    return not (len(unscored) or written.failed)
