"""Write every report of a frame as files: tables in four formats, figures in three."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from harness.errors import UserError
from harness.plugins import Plugin, call, load, names
from harness.replacing import make_folder, replacing
from harness.reports.drawing.paper import Paper
from harness.reports.drawing.style import drawing
from harness.reports.stats.once import shared
from harness.reports.writing.escape import without_backticks
from harness.reports.writing.latex import latex
from harness.reports.writing.tables import Part, Told, csv, headed, joined, page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 200
FIGURES = (".png", ".svg", ".pdf")
TABLES = (".csv", ".parquet", ".md", ".tex")


@dataclass
class Written:
    """What became of the reports: files, tables, why others are not made."""

    files: list[Path] = field(default_factory=list)
    tables: dict[str, Told] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: bool = False


def write_reports(
    frame: pd.DataFrame,
    folder: Path | None,
    chosen: Sequence[str] | None = None,
    note: str = "",
    paper: Paper | None = None,
) -> Written:
    """Make the chosen reports (all, when None) from one frame, and files of them in the folder.

    ``note`` is put under every table and figure, as for joined runs that are not comparable.
    ``paper`` says how figures are drawn.
    """
    if folder is not None:
        make_folder(folder)
    written = Written()
    with shared():
        for given in chosen or names("report"):
            report = load("report", given)
            made = _make(written, report, frame, paper)
            parts: list[Part] = []
            if isinstance(made, pd.DataFrame):
                parts = _parts(report, made, frame)
                written.tables[report.label] = _told(report, made, parts)
            if folder is not None:
                name = report.label.partition(":")[0]
                written.files += _save(made, parts, folder / name, note, paper)
    return written


def _make(
    written: Written, report: Plugin, frame: pd.DataFrame, paper: Paper | None
) -> pd.DataFrame | Figure | str:
    """Make a report, or note why it is not made."""
    try:
        made = call(f"report {report.label}", partial(_made, report, frame, paper))
    except UserError as error:  # the other reports are made all the same
        made, written.failed = str(error), True
    if isinstance(made, str):
        written.skipped[report.label] = made
    return made


def _told(report: Plugin, table: pd.DataFrame, parts: Sequence[Part]) -> Told:
    """Return what the screen and the page have of a table."""
    about = (report.module.__doc__ or "").partition("\n")[0]
    words, legend = (_sentences(report, table, part) for part in ("words", "legend"))
    people = hasattr(report.module, "readable")
    shown = {title: of for tables, _ in parts for title, of in tables.items() if people}
    return Told(about, words, _whole(table), shown, legend)


def _save(
    made: pd.DataFrame | Figure | str,
    parts: Sequence[Part],
    stem: Path,
    note: str,
    paper: Paper | None,
) -> list[Path]:
    """Write the files of a report; of one that was not made, remove those of an earlier sweep."""
    if isinstance(made, str):
        for suffix in (*TABLES, *FIGURES):
            stem.with_name(stem.name + suffix).unlink(missing_ok=True)
        return []
    if isinstance(made, pd.DataFrame):
        notes = [note] if note else []
        return save_table(made, [(shown, [*said, *notes]) for shown, said in parts], stem)
    return save_figure(_noted(made, note), stem.parent, stem.name, paper)


def _sentences(report: Plugin, table: pd.DataFrame, *parts: str) -> list[str]:
    """Return a table's ``words`` or ``legend``; a backtick in a name would end its `name`."""
    makers = [getattr(report.module, part) for part in parts if hasattr(report.module, part)]
    return [told for made in makers for told in made(table.map(without_backticks))]


def _parts(report: Plugin, table: pd.DataFrame, frame: pd.DataFrame) -> list[Part]:
    """Return each model's tables for people, with their sentences."""
    said = ("words", "legend")
    if not hasattr(report.module, "readable"):
        name = report.label.partition(":")[0]
        return [({name: table}, _sentences(report, table, *said))]
    apart = "model" in table and not getattr(report.module, "TOGETHER", False)
    models = [rows for _, rows in table.groupby("model", sort=False)] if apart else []
    return [
        (headed(report.module.readable(rows), frame), _sentences(report, rows, *said))
        for rows in (models if len(models) > 1 else [table])
    ]


def _made(report: Plugin, frame: pd.DataFrame, paper: Paper | None) -> pd.DataFrame | Figure | str:
    """Return the table or figure, or the reason why the report does not apply to this frame."""
    try:
        with drawing(paper):
            made: pd.DataFrame | Figure = report.module.make(frame, **report.arguments)
    except ValueError as error:
        return str(error)
    return made


def save_table(table: pd.DataFrame, parts: Sequence[Part], stem: Path) -> list[Path]:
    """Write a table whole for programs, and in its readable form, with sentences, for people."""
    whole = joined(_whole(table))
    plain, parquet, md, tex = files = [stem.with_name(stem.name + suffix) for suffix in TABLES]
    save_csv(whole, plain)
    with replacing(parquet) as new:
        whole.to_parquet(new, index=False)
    for file, text in ((md, page(parts)), (tex, "\n".join(map(_latex, parts)))):
        with replacing(file) as new:
            new.write(text.encode())
    return files


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its index, where that has a name, as a column."""
    return table.reset_index() if table.index.name is not None else table


def _latex(part: Part) -> str:
    """Return the tables of a part, its sentences in the caption of the last."""
    shown, words = part
    captions = [f"{title}." for title in shown]
    captions[-1:] = [" ".join([*captions[-1:], *words])]
    return "\n".join(
        latex(table, caption) for table, caption in zip(shown.values(), captions, strict=True)
    )


def save_csv(table: pd.DataFrame, file: Path) -> None:
    """Write a table for programs and spreadsheets."""
    with replacing(file) as new:
        new.write(csv(table).encode())


def _noted(figure: Figure, note: str) -> Figure:
    """Put a note on top of a figure."""
    if note:
        figure.suptitle(note, fontsize=7)
    return figure


def save_figure(figure: Figure, folder: Path, name: str, paper: Paper | None = None) -> list[Path]:
    """Write a figure as PNG, SVG and PDF; the same data give the same bytes."""
    dateless = {".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}
    files = [folder / f"{name}{suffix}" for suffix in FIGURES]
    with drawing(paper):
        figure.set_dpi(DOTS_PER_INCH)
        if layout := figure.get_layout_engine():
            layout.execute(figure)  # once for all formats
        figure.set_layout_engine(None)  # with one, even "none", each format is drawn twice
        for file in files:
            meta = {dateless[file.suffix]: None}
            with replacing(file) as new:
                figure.savefig(new, dpi=DOTS_PER_INCH, metadata=meta, format=file.suffix[1:])
    return files
