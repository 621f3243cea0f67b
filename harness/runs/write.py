"""Write every report of a frame as files: tables in four formats, figures in three."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from harness.errors import UserError
from harness.plugins import Plugin, call, load, names
from harness.replacing import make_folder, replacing
from harness.reports.drawing.paper import Paper
from harness.reports.drawing.style import drawing, wrapped
from harness.reports.stats.cells import cells
from harness.reports.stats.once import shared
from harness.reports.writing.escape import without_backticks
from harness.reports.writing.latex import latex
from harness.reports.writing.tables import Part, Told, csv, joined, page, parted, wide

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 200
FIGURES = (".png", ".svg", ".pdf")
TABLES = (".csv", ".parquet", ".md", ".tex")
UNBROKEN = re.compile(r"(?<=\d)(,?) (?=[\d%])")  # "5 %", "[8.2, 15.5]"
MOST_NAME = 24  # letters in a line of a name in a narrow terminal


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
            made = _add(written, report, frame, paper)
            if folder is not None:
                name = report.label.partition(":")[0]
                written.files += _save(report, made, folder / name, note, paper)
    return written


def _add(
    written: Written, report: Plugin, frame: pd.DataFrame, paper: Paper | None
) -> pd.DataFrame | Figure | str:
    """Make a report and note what became of it."""
    try:
        made = call(f"report {report.label}", partial(_made, report, frame, paper))
    except UserError as error:  # the other reports are made all the same
        made, written.failed = str(error), True
    if isinstance(made, str):
        written.skipped[report.label] = made
    elif isinstance(made, pd.DataFrame):
        about = (report.module.__doc__ or "").partition("\n")[0]
        words = _sentences(report, made, "words")
        written.tables[report.label] = Told(about, words, _whole(made))
    return made


def _save(
    report: Plugin,
    made: pd.DataFrame | Figure | str,
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
        return save_table(made, _parts(report, made, [note] if note else []), stem)
    return save_figure(_noted(made, note), stem.parent, stem.name, paper)


def _sentences(report: Plugin, table: pd.DataFrame, *parts: str) -> list[str]:
    """Return a table's ``words`` or ``legend``; a backtick in a name would end its `name`."""
    makers = [getattr(report.module, part) for part in parts if hasattr(report.module, part)]
    return [told for made in makers for told in made(table.map(without_backticks))]


def _parts(report: Plugin, table: pd.DataFrame, note: list[str]) -> list[Part]:
    """Return each model's tables for people, with their sentences."""
    said = ("words", "legend")
    if not hasattr(report.module, "readable"):
        name = report.label.partition(":")[0]
        return [({name: table}, [*_sentences(report, table, *said), *note])]
    apart = "model" in table and not getattr(report.module, "TOGETHER", False)
    models = [rows for _, rows in table.groupby("model", sort=False)] if apart else []
    return [
        (report.module.readable(rows), [*_sentences(report, rows, *said), *note])
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


def show(frame: pd.DataFrame, console: Console) -> None:
    """Print a table per model and task: scalings down, lengths across, 95 % intervals."""
    for title, table in wide(cells(frame)).items():
        console.print(f"\n{title}", markup=False, highlight=False)
        for part in grids(table, console.width):
            console.print(part)


def grids(table: pd.DataFrame, width: int) -> list[Table]:
    """Return a table of texts for a terminal of this width, in parts where it is too wide.

    No number is broken: an interval is below its score where both do not fit in one line.
    """
    texts = [[*map(str, row)] for row in (list(table.columns), *table.to_numpy().tolist())]
    for row in texts:
        row[0] = "\n".join(wrapped(row[0], max(MOST_NAME, width // 3)))
    if sum(_widths(texts)) > width:
        texts = [
            [row[0], *(re.sub(r" (?=[\[(])", "\n", cell) for cell in row[1:])] for row in texts
        ]
    return [_grid(texts, columns) for columns in parted(_widths(texts), width)]


def _widths(texts: Sequence[Sequence[str]]) -> list[int]:
    return [max(cell_len(line) for cell in column for line in cell.split("\n")) + 3
            for column in zip(*texts, strict=True)]  # fmt: skip


def _grid(texts: Sequence[Sequence[str]], columns: Sequence[int]) -> Table:
    drawn = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for index in columns:
        drawn.add_column(texts[0][index], justify="right" if index else "left", no_wrap=True)
    for row in texts[1:]:
        drawn.add_row(*(row[index] for index in columns))
    return drawn


def print_words(words: Mapping[str, Sequence[str]], console: Console) -> None:
    """Print the sentences of tables."""
    for name, sentences in words.items():
        if sentences:
            console.print(f"\n{name}", style="bold", highlight=False)
        for sentence in sentences:
            line = Table.grid(padding=(0, 1))
            line.add_row(
                "•", "\n".join(wrap(UNBROKEN.sub("\\1\u00a0", sentence), console.width - 2))
            )
            console.print(line, highlight=False)


def print_skipped(written: Written, console: Console) -> None:
    """Print why reports do not apply."""
    for name, reason in written.skipped.items():
        console.print(f"No {name}: {reason}", highlight=False, markup=False)
