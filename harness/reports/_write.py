"""Write every report of a frame as files: tables in four formats, figures in three."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.plugins import Plugin, call, load, names
from ropewalk.harness.reports._style import Paper, drawing
from ropewalk.harness.reports.writing.sentences import without_backticks
from ropewalk.harness.reports.writing.tables import (
    Part,
    RenderedTable,
    csv,
    headed,
    joined,
    latex,
    page,
)
from ropewalk.harness.stats.cells import shared

DOTS_PER_INCH = 200
FIGURES = (".png", ".svg", ".pdf")
CAPTION = ".caption.txt"
TABLES = (".csv", ".parquet", ".md", ".tex")
DEFAULT = (
    "scores",
    "best",
    "answer",
    "curves",
)  # the reports of a run; the others are made on request
ALL = "all"


@dataclass
class Written:
    """The reports that were written, and why others could not be.

    ``figures`` are those that were drawn for a page, without a say of the user.
    """

    JSON = ("files", "tables", "skipped", "failed")

    files: list[Path] = field(default_factory=list)
    tables: dict[str, RenderedTable] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: bool = False


def write_reports(
    frame: pd.DataFrame,
    folder: Path | None,
    chosen: Sequence[str] | None = None,
    note: str = "",
    paper: Paper | None = None,
) -> Written:
    """Make the chosen reports from one frame, and their files in the folder.

    Without a choice these are the default ones and those that the folder has from an earlier call,
    whose samples may have changed since. ``note`` is put under every table and figure, as for
    joined runs that are not comparable. ``paper`` says how figures are drawn.
    """
    if folder is not None:
        make_folder(folder)
    every = names("report")
    if chosen is None:
        there = {path.stem for path in folder.iterdir()} if folder is not None else set()
        chosen = [name for name in every if name in {*DEFAULT, *there}]
    expanded = (each for name in chosen for each in (every if name == ALL else [name]))
    written = Written()
    with shared():
        for name in dict.fromkeys(expanded):
            report = load("report", name)
            make = partial(_make, report, frame, note, paper, files=folder is not None)
            try:
                result = call(f"report {report.label}", make)
            except UserError as error:  # the other reports are made all the same
                result, written.failed = str(error), True
            if isinstance(result, str):
                written.skipped[report.label] = result
                result = _Report({})
            if result.table is not None:
                written.tables[report.label] = result.table
            if result.figure is not None and paper in (None, Paper()):
                written.figures[report.label] = result.figure
            if folder is not None:
                stem = folder / report.label.partition(":")[0]
                for suffix in {*TABLES, *FIGURES, CAPTION} - result.files.keys():
                    stem.with_name(stem.name + suffix).unlink(missing_ok=True)  # of another sweep
                written.files += save(result.files, stem)
    return written


@dataclass(frozen=True)
class _Report:
    """The content of a report's files by suffix, and what the screen and the page show of it."""

    files: Mapping[str, bytes]
    table: RenderedTable | None = None
    figure: Figure | None = None


def _make(
    report: Plugin, frame: pd.DataFrame, note: str, paper: Paper | None, *, files: bool
) -> _Report | str:
    """Return a report, or the reason why it does not apply to this frame."""
    module = report.module
    about = (module.__doc__ or "").partition("\n")[0]
    try:
        with drawing(paper):
            result: Any = module.make(frame, **report.arguments)
    except ValueError as error:
        return str(error)
    if isinstance(result, Figure):
        return _Report(_drawn(report, result, note, paper) if files else {}, figure=result)
    if not isinstance(result, pd.DataFrame):
        kind = type(result).__name__
        raise ValueError(f"it made {kind}, neither a DataFrame nor a figure of Matplotlib")
    if result.empty:
        return "its table is empty"
    parts = _parts(report, result, frame)
    noted = [(tables, [*texts, note] if note else texts) for tables, texts in parts]
    content = table_files(result, noted) if files else {}
    figure = None
    if files and hasattr(module, "draw"):
        with suppress(ValueError), drawing(paper):  # the table has a figure only sometimes
            figure = module.draw(frame, result)
            content |= _drawn(report, figure, note, paper)
    tables = parts if hasattr(module, "display") else []
    display = {title: shown for part, _ in tables for title, shown in part.items()}
    summary, notes = (_texts(report, name, result) for name in ("summary", "notes"))
    return _Report(content, RenderedTable(about, summary, _whole(result), display, notes), figure)


def _texts(report: Plugin, name: str, table: pd.DataFrame) -> list[str]:
    """Return a table's summary or notes; a backtick in a name would end its `name`."""
    function = getattr(report.module, name, None)
    return function(table.map(without_backticks)) if function else []


def _parts(report: Plugin, table: pd.DataFrame, frame: pd.DataFrame) -> list[Part]:
    """Return the tables for people, with their sentences, of each model by itself.

    A table of models that are compared with each other, as over seeds, is one.
    """
    display = getattr(report.module, "display", None)
    together = getattr(report.module, "TOGETHER", "seeds" in table)
    tables = [table]
    if display and not together and "model" in table:
        tables = [rows for _, rows in table.groupby("model", sort=False)]
    return [
        (
            headed(display(rows), frame) if display else {report.label.partition(":")[0]: rows},
            [*_texts(report, "summary", rows), *_texts(report, "notes", rows)],
        )
        for rows in tables
    ]


def save(files: Mapping[str, bytes], stem: Path) -> list[Path]:
    """Write contents by suffix beside each other under one name, each whole or not at all."""
    for suffix, content in files.items():
        with replacing(stem.with_name(stem.name + suffix)) as new:
            new.write(content)
    return [stem.with_name(stem.name + suffix) for suffix in files]


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
    return table.reset_index() if table.index.name is not None else table


def _latex(part: Part) -> str:
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


def _drawn(report: Plugin, figure: Figure, note: str, paper: Paper | None) -> dict[str, bytes]:
    """Return the files of a report's figure, and of its caption, which is the figure's label."""
    about = (report.module.__doc__ or "").partition("\n")[0]
    caption = " ".join(filter(None, [about, str(figure.get_label()), note]))
    return figure_files(figure, paper) | {CAPTION: f"{caption}\n".encode()}


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG, SVG and PDF, and its caption; the same data give the same bytes."""
    caption = {CAPTION: f"{figure.get_label()}\n".encode()} if figure.get_label() else {}
    return save(figure_files(figure) | caption, folder / name)


def figure_files(figure: Figure, paper: Paper | None = None) -> dict[str, bytes]:
    """Return the content of a figure's files by suffix.

    They are drawn in memory: Matplotlib's own error would hide that a disk is full.
    """
    changing = {".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}
    files = {}
    with drawing(paper):
        figure.set_dpi(DOTS_PER_INCH)
        for suffix in FIGURES:
            content = io.BytesIO()
            metadata = {changing[suffix]: None}
            figure.savefig(content, dpi=DOTS_PER_INCH, metadata=metadata, format=suffix[1:])
            files[suffix] = _indexed(content) if suffix == ".png" else content.getvalue()
    return files


def _indexed(picture: io.BytesIO) -> bytes:
    """Return a PNG in 256 colours, a third of the size; a transparent one is returned unchanged."""
    with Image.open(picture) as image:
        if image.getchannel("A").getextrema() != (255, 255):
            return picture.getvalue()
        # Median cut keeps the hues of large faint areas, which Pillow's other ways change.
        colours = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        content = io.BytesIO()
        colours.save(content, "png", dpi=image.info["dpi"])
    return content.getvalue()
