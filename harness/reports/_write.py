"""Write every report of a frame as files: tables in four formats, figures in three."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from harness.errors import UserError
from harness.files import make_folder, replacing
from harness.plugins import Plugin, call, load, names
from harness.reports.plots.style import SIZE, Paper, drawing, folded
from harness.reports.writing.sentences import without_backticks
from harness.reports.writing.tables import Part, RenderedTable, csv, headed, joined, latex, page
from harness.stats.cells import shared

DOTS_PER_INCH = 200
LARGEST = 2000  # square inches of a figure: 320 MB of pixels
FIGURES = (".png", ".svg", ".pdf")
TABLES = (".csv", ".parquet", ".md", ".tex")


@dataclass
class Written:
    """What became of the reports: files, tables, why others are not made."""

    files: list[Path] = field(default_factory=list)
    tables: dict[str, RenderedTable] = field(default_factory=dict)
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
            make = partial(_made, report, frame, note, paper, files=folder is not None)
            try:
                made = call(f"report {report.label}", make)
            except UserError as error:  # the other reports are made all the same
                made, written.failed = str(error), True
            if isinstance(made, str):
                written.skipped[report.label] = made
            elif made.told is not None:
                written.tables[report.label] = made.told
            if folder is not None:
                stem = folder / report.label.partition(":")[0]
                written.files += _save(made, stem)
    return written


@dataclass(frozen=True)
class _Made:
    """A report as it was made: the content of its files by suffix, and of a table its sentences."""

    files: Mapping[str, bytes]
    told: RenderedTable | None = None


def _made(
    report: Plugin, frame: pd.DataFrame, note: str, paper: Paper | None, *, files: bool
) -> _Made | str:
    """Return a report, or the reason why it does not apply to this frame."""
    try:
        with drawing(paper):
            made: Any = report.module.make(frame, **report.arguments)
    except ValueError as error:
        return str(error)
    if isinstance(made, pd.DataFrame):
        if made.empty:
            return "its table is empty"
        parts = _parts(report, made, frame)
        notes = [note] if note else []
        noted = [(shown, [*said, *notes]) for shown, said in parts]
        return _Made(table_files(made, noted) if files else {}, _told(report, made, parts))
    if not isinstance(made, Figure):
        raise ValueError(
            f"it made {type(made).__name__}, neither a DataFrame nor a figure of Matplotlib"
        )  # shown as one sentence, as every error of a report
    return _Made(figure_files(_noted(made, note), paper) if files else {})


def _told(report: Plugin, table: pd.DataFrame, parts: Sequence[Part]) -> RenderedTable:
    """Return what the screen and the page have of a table."""
    about = (report.module.__doc__ or "").partition("\n")[0]
    words, legend = (_sentences(report, table, part) for part in ("words", "legend"))
    people = hasattr(report.module, "readable")
    shown = {title: of for tables, _ in parts for title, of in tables.items() if people}
    return RenderedTable(about, words, _whole(table), shown, legend)


def _save(made: _Made | str, stem: Path) -> list[Path]:
    """Write the files of a report; of one that was not made, remove those of an earlier sweep."""
    if isinstance(made, str):
        for suffix in (*TABLES, *FIGURES):
            stem.with_name(stem.name + suffix).unlink(missing_ok=True)
        return []
    return save(made.files, stem)


def save(files: Mapping[str, bytes], stem: Path) -> list[Path]:
    """Write contents by suffix beside each other under one name, each whole or not at all."""
    for suffix, content in files.items():
        with replacing(stem.with_name(stem.name + suffix)) as new:
            new.write(content)
    return [stem.with_name(stem.name + suffix) for suffix in files]


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


def save_table(table: pd.DataFrame, parts: Sequence[Part], stem: Path) -> list[Path]:
    """Write a table whole for programs, and in its readable form, with sentences, for people."""
    return save(table_files(table, parts), stem)


def table_files(table: pd.DataFrame, parts: Sequence[Part]) -> dict[str, bytes]:
    """Return the content of a table's files by suffix, as ``save_table`` writes them."""
    whole, parquet = joined(_whole(table)), io.BytesIO()
    whole.to_parquet(parquet, index=False)
    texts = (csv(whole), page(parts), "\n".join(map(_latex, parts)))
    plain, md, tex = (text.encode() for text in texts)
    return dict(zip(TABLES, (plain, parquet.getvalue(), md, tex), strict=True))


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
    """Put a note on top of a figure, in lines as wide as it is."""
    if note:
        size = SIZE - 1
        text = folded(note, figure.get_size_inches()[0] - 0.2, size)
        figure.suptitle(text, fontsize=size)
    return figure


def save_figure(figure: Figure, folder: Path, name: str, paper: Paper | None = None) -> list[Path]:
    """Write a figure as PNG, SVG and PDF; the same data give the same bytes."""
    return save(figure_files(figure, paper), folder / name)


def figure_files(figure: Figure, paper: Paper | None = None) -> dict[str, bytes]:
    """Return the content of a figure's files by suffix; raise ValueError for one of giant size.

    They are drawn in memory: Matplotlib's own error would hide that a disk is full.
    """
    width, height = figure.get_size_inches()
    if not 0 < width * height <= LARGEST:
        message = f"its figure is {width:g} x {height:g} inches; at most {LARGEST:,} square inches"
        raise ValueError(f"{message} are drawn")
    dateless = {".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}
    files = {}
    with drawing(paper):
        figure.set_dpi(DOTS_PER_INCH)
        if layout := figure.get_layout_engine():
            layout.execute(figure)  # once for all formats
        figure.set_layout_engine(None)  # with one, even "none", each format is drawn twice
        for suffix in FIGURES:
            content = io.BytesIO()
            meta = {dateless[suffix]: None}
            figure.savefig(content, dpi=DOTS_PER_INCH, metadata=meta, format=suffix[1:])
            files[suffix] = content.getvalue()
    return files
