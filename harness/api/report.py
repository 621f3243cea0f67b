"""Make the reports of runs from their files."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ropewalk.harness.api.gate import Verdict, evaluate
from ropewalk.harness.api.observer import LOG, Observer
from ropewalk.harness.card import write_card
from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.reports._page import write_page
from ropewalk.harness.reports._style import COLUMN, PAGE, Paper, drawing
from ropewalk.harness.reports._write import ALL, Written, write_reports
from ropewalk.harness.runs.compatible import raw_text, reasons, unpaired
from ropewalk.harness.runs.frame import make_frame
from ropewalk.harness.runs.parquet import runs_at
from ropewalk.harness.runs.store import REPORTS, read_run, runs_in
from ropewalk.harness.stats.cells import shared
from ropewalk.harness.stats.checkpoints import as_methods

INDEX = "index.html"
WIDTHS = {"page": PAGE, "column": COLUMN}


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
    """

    frame: pd.DataFrame
    written: Written
    note: str = ""
    page: Path | None = None
    conditions: tuple[Verdict, ...] = ()
    card: Path | None = None

    JSON = ("written", "note", "page", "card", "unscored", "conditions")

    @property
    def unscored(self) -> list[str]:
        """Say why tasks could not score what was measured."""
        failed = (self.frame["status"] == "failed") & self.frame["value"].notna()
        return [*self.frame.loc[failed, "reason"].unique()]

    @property
    def complete(self) -> bool:
        """Return whether every task and report could do its part."""
        return not self.unscored and not self.written.failed


def report(
    runs: str | Path | Sequence[str | Path],
    *,
    report: Sequence[str] | None = None,
    task: Sequence[str] = (),
    out: str | Path | None = None,
    page: str | Path | None = None,
    card: bool = False,
    mixed: bool = False,
    together: bool | None = None,
    fail_if: Sequence[str] = (),
    width: str = "page",
    style: str | Path | None = None,
    observer: Observer = LOG,
) -> Reports:
    """Write the reports of runs, which are joined, and their page.

    ``report`` names reports, or ``all`` (default: scores, best and curves), ``task`` your own task
    files that the runs were measured with, ``out`` the folder (default: RUN/reports, for one run).
    ``card`` writes a section for the README of a model, ``card.md``, beside the tables.
    ``mixed`` joins runs that are not comparable; ``together`` compares models as methods, by
    default where each has one method. ``fail_if`` are queries on the cells, such as ``scaling ==
    "yarn" and effective_length < 16384``, whose verdicts are ``conditions`` of the result. Figures
    are as wide as a ``page`` or a ``column`` of a paper, in a ``style`` of Matplotlib or of a style
    file. Raises UserError where runs are not comparable, and for a condition that names nothing of
    them.
    """
    places = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    folders = runs_in(places)
    joined = len(places) > 1 or bool(runs_at(places[0]))
    if joined and out is None and page is None:
        raise UserError(
            "several runs are joined: say with --out where their tables and figures go, or with "
            "--page where a page of them goes."
        )
    if page is not None and Path(page).suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--page {page}: name a file that ends in .html.")
    if width not in WIDTHS:
        raise UserError(f"--width {width}: figures are as wide as a page or a column.")
    paper = Paper(WIDTHS[width], style)
    try:
        with drawing(paper):
            pass
    except OSError as error:
        raise UserError(f"--style {style} is no style of Matplotlib: {reason(error)}.") from None
    folder = Path(out) if out else None if joined else places[0] / REPORTS
    if card and folder is None:
        raise UserError("--card: say with --out where the card of several runs goes.")
    return write(
        folders,
        folder,
        report,
        task,
        mixed=mixed,
        together=together,
        page=Path(page) if page else None,
        card=card,
        paper=paper,
        conditions=fail_if,
        observer=observer,
    )


def write(
    runs: Sequence[Path],
    folder: Path | None,
    chosen: Sequence[str] | None = None,
    tasks: Sequence[str] = (),
    *,
    mixed: bool = False,
    together: bool | None = None,
    page: Path | None = None,
    card: bool = False,
    paper: Paper | None = None,
    conditions: Sequence[str] = (),
    observer: Observer = LOG,
) -> Reports:
    """Write the reports of run folders into a folder, and their page.

    Only the code of ``tasks`` runs beside the built-in ones. Figures are drawn for ``paper``.
    """
    with observer.status("Making tables and figures"):
        gc.disable()  # its every pass would look at all that stays
        try:
            frame = compared(make_frame(runs, tasks, mixed=mixed), together)
        finally:
            gc.freeze()
            gc.enable()
        verdicts = evaluate(conditions, frame)
        records = {run: read_run(run) for run in runs}
        why = reasons(records)
        notes = [f"Not comparable: {'; '.join(why)}."] if why else unpaired(records)
        note = " ".join([*notes, *raw_text(records.values())])
        if page is None and folder is not None and (chosen is None or ALL in chosen):
            page = folder / INDEX
        with shared():
            written = write_reports(frame, folder, chosen, note, paper)
            if page is not None:
                write_page(page, frame, list(records.values()), written, note)
            card_file = folder / "card.md" if card and folder is not None else None
            if card_file is not None:
                write_card(card_file, frame, list(records.values()), written, note)
    return Reports(frame, written, note, page, verdicts, card_file)


def compared(frame: pd.DataFrame, together: bool | None) -> pd.DataFrame:
    """Return the samples of several models as those of methods, if requested or evident."""
    methods = frame.groupby("model")["scaling"].nunique()
    if together is False or (together is None and (len(methods) == 1 or methods.max() > 1)):
        return frame
    try:
        return as_methods(frame)
    except ValueError as error:
        if together is None:
            return frame
        raise UserError(f"--together: {error}.") from None
