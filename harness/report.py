"""Write every report of a frame as files: tables in four formats, figures in three."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.plugins import Plugin, call, load, names
from harness.reports._cells import cells
from harness.reports._style import saving
from harness.reports._tables import latex, page, wide
from harness.store import make_folder, replacing

DOTS_PER_INCH = 200
FIGURES = (".png", ".svg", ".pdf")
TABLES = (".csv", ".parquet", ".md", ".tex")


@dataclass
class Written:
    """What became of the reports: files, what each table says in words, why others do not apply."""

    files: list[Path] = field(default_factory=list)
    words: dict[str, list[str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def write_reports(
    frame: pd.DataFrame, folder: Path, chosen: Sequence[str] | None = None, note: str = ""
) -> Written:
    """Make the chosen reports (all, when None) from one frame.

    ``note`` is put under every table and figure, as for runs joined that are not comparable.
    """
    make_folder(folder)
    written = Written()
    for given in chosen or names("report"):
        report = load("report", given)
        name = report.label.partition(":")[0]
        made = call(f"report {report.label}", partial(_made, report, frame))
        if isinstance(made, str):
            written.skipped[report.label] = made
            for suffix in (*TABLES, *FIGURES):  # what an earlier sweep of this folder had to show
                (folder / f"{name}{suffix}").unlink(missing_ok=True)
        elif isinstance(made, pd.DataFrame):
            module = report.module
            told = module.words(made) if hasattr(module, "words") else []
            shown = module.readable(made) if hasattr(module, "readable") else {name: made}
            words = [*told, *([note] if note else [])]
            written.words[report.label] = told
            written.files += save_table(made, shown, words, folder / name)
        else:
            written.files += save_figure(_noted(made, note), folder, name)
    return written


def _made(report: Plugin, frame: pd.DataFrame) -> pd.DataFrame | Figure | str:
    """Return the table or figure, or in words why the report does not apply to this frame."""
    try:
        # A $ in a name is a $, and no formula.
        with rc_context({"text.parse_math": False}):
            made: pd.DataFrame | Figure = report.module.make(frame, **report.options)
    except ValueError as error:
        return str(error)
    return made


def save_table(
    table: pd.DataFrame, shown: Mapping[str, pd.DataFrame], words: Sequence[str], stem: Path
) -> list[Path]:
    """Write a table whole for programs, and as it is shown, with its words, for people."""
    whole = table.reset_index() if table.index.name is not None else table
    csv, parquet, md, tex = files = [stem.with_name(stem.name + suffix) for suffix in TABLES]
    captions = [f"{title}." for title in shown]
    captions[-1:] = [" ".join([*captions[-1:], *words])]
    parts = [latex(made, caption) for made, caption in zip(shown.values(), captions, strict=True)]
    with replacing(csv) as new:
        whole.to_csv(new, index=False, lineterminator="\n")
    with replacing(parquet) as new:
        whole.to_parquet(new, index=False)
    for file, text in ((md, page(shown, words)), (tex, "\n".join(parts))):
        with replacing(file) as new:
            new.write_text(text, encoding="utf-8")
    return files


def _noted(figure: Figure, note: str) -> Figure:
    """Put a note on top of a figure, which no reader misses."""
    if note:
        figure.suptitle(note, fontsize=7)
    return figure


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG, SVG and PDF; the same data give the same bytes."""
    dateless = {
        ".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None},
    }  # fmt: skip
    files = [folder / f"{name}{suffix}" for suffix in FIGURES]
    with saving():
        for file in files:
            meta = dateless[file.suffix]
            with replacing(file) as new:
                figure.savefig(new, dpi=DOTS_PER_INCH, metadata=meta, format=file.suffix[1:])
    return files


def show(frame: pd.DataFrame, console: Console) -> None:
    """Print a table per model and task: scalings down, lengths across, 95 % intervals."""
    for title, table in wide(cells(frame)).items():
        console.print(f"\n{title}", markup=False, highlight=False)
        console.print(grid(table))


def grid(table: pd.DataFrame) -> Table:
    """Return a table of texts for the terminal, its first column whole."""
    drawn = Table(box=box.SIMPLE)
    for index, column in enumerate(table.columns):
        drawn.add_column(str(column), justify="right" if index else "left", no_wrap=not index)
    for row in table.itertuples(index=False):
        drawn.add_row(*map(str, row))
    return drawn


def tell(written: Written, console: Console) -> None:
    """Print what the tables say in words, and why reports do not apply."""
    for name, sentences in written.words.items():
        if sentences:
            console.print(f"\n{name}", style="bold", highlight=False)
        for sentence in sentences:
            line = Table.grid(padding=(0, 1))
            line.add_row("•", Text(sentence))
            console.print(line, highlight=False)
    for name, reason in written.skipped.items():
        console.print(f"No {name}: {reason}", highlight=False, markup=False)
