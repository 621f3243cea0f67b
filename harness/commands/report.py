"""``ropewalk report`` and ``ropewalk compare``: what the files of runs alone say."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.sweep.spec import OUT, OUTPUT, FailIf

if TYPE_CHECKING:
    import pandas as pd

    from ropewalk.harness.commands.gate import Verdict
    from ropewalk.harness.reports._comparison import Comparison
    from ropewalk.harness.reports._write import Written

log = logging.getLogger("ropewalk")
MOST = 20  # lines about failures; a sweep can have thousands


@dataclass(frozen=True)
class Reports:
    """The reports of one or more runs.

    Attributes:
        frame: one row per sample.
        written: the tables and files, and why other reports do not apply.
        note: what is below every table: why the runs are not comparable, or not paired.
        page: the file with all charts and tables.
        conditions: whether each condition of ``fail_if`` holds.
        card: the section for a model card.
        chosen: whether reports were chosen by name.
    """

    frame: pd.DataFrame
    written: Written
    note: str = ""
    page: Path | None = None
    conditions: tuple[Verdict, ...] = ()
    card: Path | None = None
    chosen: bool = False

    JSON = ("written", "note", "page", "card", "missing", "conditions")

    @property
    def missing(self) -> pd.DataFrame:
        """One row per sample without a number: its cell, its status, and the reason."""
        from ropewalk.harness.runs.frame import without_numbers

        return without_numbers(self.frame)

    @property
    def status(self) -> int:
        """The exit status: of a condition, else 1 where a named report or a score is missing."""
        known = {verdict.holds for verdict in self.conditions}
        if True in known or None in known:
            return 3 if True in known else 4
        unscored = (self.frame["status"] == "failed") & self.frame["value"].notna()
        lacking = self.written.failed or (self.chosen and self.written.skipped)
        return int(bool(unscored.any() or lacking))

    def ends(self) -> Iterator[str]:
        """Yield what is below an answer: why there is less, and where everything is."""
        if self.note:
            yield self.note
        yield from (f"No {name}: {text}" for name, text in self.written.skipped.items())
        if self.page is not None:
            yield f"Page: {self.page}"
        if self.card is not None:
            yield f"Card: {self.card}"

    def __str__(self) -> str:
        if self.chosen:
            tables = [f"{name}\n\n{table}" for name, table in self.written.tables.items()]
            shown = [*tables, *map(str, self.written.files)]
        else:
            shown = [answer(self.written.cells)]
        return "\n".join([*shown, *self.ends(), *failures(self.frame)])


def answer(cells: pd.DataFrame) -> str:
    """Return the scores of a table of cells, and what to use at the farthest lengths."""
    from ropewalk.harness.reports.verdict import screen

    return screen(cells)


def failures(frame: pd.DataFrame) -> Iterator[str]:
    """Say what has no number and why, one line per cell and reason."""
    from ropewalk.harness.runs.frame import FAILED, without_numbers

    lines = Counter(
        f"  {row['scaling']}, {row['task']}, {row['length']} tokens: "
        + f"{row['status'].replace('_', ' ')}: " * (row["status"] != FAILED)
        + row["reason"]
        for row in without_numbers(frame).to_dict("records")
    )
    if lines:
        yield "Without a number:"
    for line, count in [*lines.items()][:MOST]:
        yield line + f" ({count} samples)" * (count > 1)
    if len(lines) > MOST:
        yield f"  … and {len(lines) - MOST} more; samples.jsonl has every reason."


def report(
    runs: tuple[Path, ...],
    /,
    *,
    report: tuple[str, ...] | None = None,
    task: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    out: Annotated[Path | None, OUT] = None,
    page: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    card: bool = False,
    mixed: bool = False,
    together: Annotated[bool | None, Parameter(negative=None)] = None,
    width: Literal["page", "column"] = "page",
    style: str | None = None,
    format: Annotated[
        tuple[Literal["tex", "svg", "pdf", "parquet"], ...], Parameter(show_default=False)
    ] = (),
    fail_if: FailIf = (),
) -> Reports:
    """Make the tables, figures and page of one or more runs from their files.

    Args:
        runs: Run folders, or a folder of runs; several runs are joined.
        report: Which reports, or all. [default: the answer, the cells, and the figures]
        task: Your own task files that the runs were measured with: only these are executed.
        out: Where the files go. [default: RUN/reports, for one run]
        page: The page, one .html file with these charts and tables, to send. [default: index.html
            beside the files of all reports]
        card: Write card.md too, a section for the README of a model: the answer, the scores and
            model-index metadata.
        mixed: Show runs side by side that are not comparable.
        together: Compare models as methods, in one panel. [default: if each has one method]
        width: Figures are 7 inches wide as a page, or 3.3 as a column of a paper.
        style: A style of Matplotlib, or its file.
        format: Other files beside CSV, Markdown and PNG.
        fail_if: As for `ropewalk run`.
    """
    from ropewalk.harness.commands.gate import evaluate
    from ropewalk.harness.files import check_ours
    from ropewalk.harness.reports._page import card as card_of
    from ropewalk.harness.reports._page import page as page_of
    from ropewalk.harness.reports._style import COLUMN, PAGE, Paper, drawing
    from ropewalk.harness.reports._write import ALL, FORMATS, save, write_reports
    from ropewalk.harness.reports.cells import shared
    from ropewalk.harness.runs.compatible import reasons
    from ropewalk.harness.runs.frame import make_frame
    from ropewalk.harness.runs.parquet import runs_at
    from ropewalk.harness.runs.store import REPORTS, RUN, read_run, runs_in

    places = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    folders, chosen, formats = runs_in(places), _several(report), _several(format)
    folder = Path(out) if out else None
    if len(places) > 1 or runs_at(places[0]):
        if folder is None and (card or page is None):
            raise UserError("several runs are joined: say with --out where their reports go.")
    else:
        folder = folder or places[0] / REPORTS
    if page is not None and Path(page).suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--page {page}: name a file that ends in .html.")
    if unknown := {*formats} - {*FORMATS}:
        raise UserError(f"--format {min(unknown)}: write some of {', '.join(FORMATS)}.")
    paper = Paper({"page": PAGE, "column": COLUMN}[width], style)
    try:
        with drawing(paper):
            pass
    except OSError as error:
        raise UserError(f"--style {style} is no style of Matplotlib: {reason(error)}.") from None
    frame = compared(make_frame(folders, _several(task), mixed=mixed), together)
    records = {run: read_run(run) for run in folders}
    since = None
    if folder and folder in [place / REPORTS for run in folders for place in (run, run.parent)]:
        since = max((run / RUN).stat().st_mtime for run in folders)
    why = reasons(records)
    note = f"Not comparable: {'; '.join(why)}." if why else ""
    whole = chosen is None or ALL in chosen
    file = Path(page) if page else folder / "index.html" if folder and whole else None
    if file is not None:
        check_ours(file, "Ropewalk</title>", "the page")
    card_file = folder / "card.md" if card and folder else None
    with shared(frame):
        verdicts = evaluate(_several(fail_if), frame)
        written = write_reports(frame, folder, chosen, note, paper, formats, since)
        if file is not None:
            html = page_of([*records.values()], written, note)
            save({file.name: html.encode()}, file.absolute().parent)
        if card_file is not None:
            text = card_of(frame, [*records.values()], written, note)
            save({card_file.name: text.encode()}, card_file.parent)
    for verdict in verdicts:
        if verdict.holds is False:
            log.info(f"Passed: {verdict.condition}: {verdict.text}.")
        else:
            word = "Failed" if verdict.holds else "Not evaluated"
            log.error(f"{word}: {verdict.condition}: {verdict.text}.")
    return Reports(frame, written, note, file, verdicts, card_file, not whole)


def _several(texts: Any) -> Any:
    """Accept one text for a list of one, as from Python."""
    return [texts] if isinstance(texts, str) else texts


def compared(frame: pd.DataFrame, together: bool | None) -> pd.DataFrame:
    """Return the samples of several models as those of methods, if requested or evident."""
    from ropewalk.harness.stats.cells import as_methods

    methods = frame.groupby("model")["scaling"].nunique()
    if together is False or (together is None and (len(methods) == 1 or methods.max() > 1)):
        return frame
    try:
        return as_methods(frame)
    except ValueError as error:
        if together is None:
            return frame
        raise UserError(f"--together: {error}.") from None


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
    task: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    out: Annotated[Path | None, OUT] = None,
) -> Comparison:
    """Compare two runs cell by cell on the same documents, or a run with a published table.

    The runs may be of two models. They may also be of one model before and after a change to it, to
    a package or to the machine. For every cell that both runs have, the table shows the second
    minus the first.

    Args:
        run: A run folder.
        other: The run folder to compare it with.
        published: Compare one run with this table instead: dca, lceg-pg19, pi-pg19, …; exit
            status 1 if a value is outside the tolerance. [default: the one that the run's sweep
            file names]
        model: A model of the table. [default: its only one, or the one with the run's name]
        tuned: A training that the table names: use the rows with it. [default: rows without]
        tolerance: Percent by which a value may differ and count as reproduced. [default: 2]
        mixed: Compare with a table of another protocol or trained length too, with a warning.
        task: Your own task files that the runs were measured with: only these are executed.
        out: Write the comparison there too, as CSV and Markdown.
    """
    from ropewalk.harness.reports._comparison import two_runs
    from ropewalk.harness.reports._published import with_table

    folder = Path(out) if out else None
    options: dict[str, Any] = {
        "published": published, "model": model, "tuned": tuned, "tolerance": tolerance
    }  # fmt: skip
    if other is None:
        return with_table(Path(run), task, folder, mixed=mixed, **options)
    for name, value in {**options, "mixed": mixed or None}.items():
        if value is not None:
            raise UserError(
                f"--{name} is for one run beside a published table; two runs were given."
            )
    return two_runs(Path(run), Path(other), task, folder)
