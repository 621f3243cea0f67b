"""Write the reports of a frame as files: what every run has, and those that are named."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.plugins import Plugin, call, load, names
from ropewalk.harness.reports._page import report_text
from ropewalk.harness.reports._style import Paper, drawing
from ropewalk.harness.reports._text import RenderedTable, latex
from ropewalk.harness.reports.cells import Shared, scores, shared
from ropewalk.harness.stats.cells import records

log = logging.getLogger("ropewalk")
DOTS_PER_INCH = 200
FIGURES = ("answer", "curves", "retrieval", "position")  # of every run, as far as they apply
CHANGING = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}  # metadata that is left out
FORMATS = ("tex", "svg", "pdf", "parquet")  # on request, beside CSV, Markdown and PNG
SUFFIXES = ("csv", "md", "png", *FORMATS)
ALL = "all"
RESULT = ("model", "task", "metric", "method", "length", "score", "low", "high", "n", "unit")


@dataclass
class Written:
    """The reports that were written, and why others could not be."""

    JSON = ("files", "cells", "tables", "skipped", "failed")

    shared: Shared
    files: list[Path] = field(default_factory=list)
    tables: dict[str, RenderedTable] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    @property
    def cells(self) -> pd.DataFrame:
        """The table of cells."""
        return self.shared.table


def write_reports(
    frame: pd.DataFrame,
    folder: Path | None,
    chosen: Sequence[str] | None = None,
    note: str = "",
    paper: Paper | None = None,
    formats: Collection[str] = (),
    since: float | None = None,
) -> Written:
    """Make reports from one frame, and their files in the folder.

    Without a choice these are ``results.json``, ``cells.csv``, ``report.md`` and the reports of
    every run. ``note`` is put under every text, as for joined runs that are not comparable.
    ``paper`` says how figures are drawn, and ``formats`` which other files they have. ``since`` is
    the time of the records of the runs, in the folder of their own reports: what reports left there
    before and would not make now is removed.
    """
    if folder is not None:
        make_folder(folder)  # an error before the figures are drawn
    whole = chosen is None or ALL in chosen
    every = [*FIGURES, *names("report")] if chosen and whole else chosen or FIGURES
    with shared(frame) as known:
        written, files = Written(known), dict[str, bytes]()
        for name in dict.fromkeys(every):
            report = load("report", name)
            stem = report.label.partition(":")[0]
            try:
                make = partial(_made, report, frame, note, paper, formats)
                made = call(f"report {report.label}", make)
            except UserError as error:  # the other reports are made all the same
                made, written.failed = str(error), True
            if isinstance(made, str):
                if chosen is not None or written.failed:
                    written.skipped[report.label] = made
                continue
            own, table, figure = made
            if not whole and (absent := sorted({*formats} - own.keys())):
                log.info(
                    f"{report.label} is not written as {', '.join(absent)}: tables are as tex and"
                    " parquet, figures as svg and pdf."
                )
            files |= {f"{stem}.{suffix}": content for suffix, content in own.items()}
            if table is not None:
                written.tables[report.label] = table
            if figure is not None:
                written.figures[report.label] = figure
        if whole:
            files |= _of_a_run(written, note, formats)
        if folder is not None:
            written.files = save(files, folder)
            if chosen is None and since is not None:
                _remove_earlier(folder, files, since)
    return written


def _remove_earlier(folder: Path, files: Collection[str], since: float) -> None:
    for stem, suffix in product((*FIGURES, *names("report"), "report"), SUFFIXES):
        path = folder / f"{stem}.{suffix}"
        if path.name not in files and path.exists() and path.stat().st_mtime < since:
            path.unlink()


def _made(
    report: Plugin,
    frame: pd.DataFrame,
    note: str,
    paper: Paper | None,
    formats: Collection[str],
) -> tuple[dict[str, bytes], RenderedTable | None, Figure | None] | str:
    """Return a report's files by suffix, its table and its figure, or why it does not apply."""
    module = report.module
    try:
        with drawing(paper):
            result: Any = module.make(frame, **report.arguments)
    except ValueError as error:
        return str(error)
    if isinstance(result, Figure):
        return figure_files(result, paper, formats), None, result
    if not isinstance(result, pd.DataFrame):
        kind = type(result).__name__
        raise ValueError(f"it made {kind}, neither a DataFrame nor a figure of Matplotlib")
    if result.empty:
        return "its table is empty"
    figure = None
    if hasattr(module, "draw"):
        with suppress(ValueError), drawing(paper):  # the table has a figure only sometimes
            figure = module.draw(frame, result)
    display = getattr(module, "display", lambda table: {report.label: table})
    notes = [*(module.notes(result) if hasattr(module, "notes") else []), *filter(None, [note])]
    about = (module.__doc__ or "").partition("\n")[0]
    table = RenderedTable(about, result, display(result), notes)
    drawn = figure_files(figure, paper, formats) if figure else {}
    return table.contents(formats) | drawn, table, figure


def _of_a_run(written: Written, note: str, formats: Collection[str]) -> dict[str, bytes]:
    table = written.cells
    flat = table.rename(columns={"scaling": "method"})[[*RESULT]]
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in records(flat))
    texts = {
        "results.json": f"[\n{rows}\n]\n",
        "cells.csv": table.to_csv(index=False),
        "report.md": report_text(table, written.figures, note),
    }
    if "tex" in formats:
        bold = scores(table, lambda row: "bold" if row["above"] == 0 else "")
        texts["report.tex"] = "\n".join(
            latex(shown, f"{title}.", f"scores-{number}", bold[title])
            for number, (title, shown) in enumerate(scores(table).items(), start=1)
        )
    files = {name: text.encode() for name, text in texts.items()}
    if "parquet" in formats:
        files["cells.parquet"] = table.to_parquet(index=False)
    return files


def figure_files(
    figure: Figure, paper: Paper | None = None, formats: Collection[str] = ()
) -> dict[str, bytes]:
    """Return the content of a figure's files by suffix.

    They are drawn in memory: Matplotlib's own error would hide that a disk is full.
    """
    files = {}
    with drawing(paper):
        # PNG first: each drawing moves the layout of a figure a little.
        for suffix in (suffix for suffix in CHANGING if suffix in ("png", *formats)):
            content, metadata = io.BytesIO(), {CHANGING[suffix]: None}
            figure.savefig(content, dpi=DOTS_PER_INCH, metadata=metadata, format=suffix)
            files[suffix] = content.getvalue()
    return files


def save(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write files, whose content is given by name, into a folder; return their paths."""
    make_folder(folder)
    for name, content in files.items():
        with replacing(folder / name) as file:
            file.write(content)
    return [folder / name for name in files]
