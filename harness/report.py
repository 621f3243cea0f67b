"""Write every report of a frame as files: tables as CSV and Markdown, figures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from harness.plugins import Plugin, call, load, names
from harness.reports._style import saving
from harness.reports._tables import markdown, wide
from harness.store import make_folder, replacing

DOTS_PER_INCH = 200
SUFFIXES = (".csv", ".md", ".png", ".svg")


def write_reports(
    frame: pd.DataFrame, folder: Path, chosen: Sequence[str] | None = None
) -> tuple[list[Path], dict[str, str]]:
    """Make the chosen reports (all, when None) from one frame.

    Returns the files written, and the reports that do not apply to this frame with the reason.
    """
    make_folder(folder)
    written: list[Path] = []
    skipped: dict[str, str] = {}
    for given in chosen or names("report"):
        report = load("report", given)
        name = report.label.partition(":")[0]
        made = call(f"report {report.label}", partial(_made, report, frame))
        if isinstance(made, str):
            skipped[report.label] = made
            for suffix in SUFFIXES:  # what an earlier sweep of this folder had to show
                (folder / f"{name}{suffix}").unlink(missing_ok=True)
            continue
        if isinstance(made, pd.DataFrame):
            readable = getattr(report.module, "readable", None)
            text = readable(frame) if readable else markdown(made)
            written += _table(made, text, folder, name)
        else:
            written += save_figure(made, folder, name)
    return written, skipped


def _made(report: Plugin, frame: pd.DataFrame) -> pd.DataFrame | Figure | str:
    """Return the table or figure, or in words why the report does not apply to this frame."""
    try:
        # A $ in a name is a $, and no formula.
        with rc_context({"text.parse_math": False}):
            made: pd.DataFrame | Figure = report.module.make(frame, **report.options)
    except ValueError as error:
        return str(error)
    return made


def _table(table: pd.DataFrame, text: str, folder: Path, name: str) -> list[Path]:
    files = [folder / f"{name}.csv", folder / f"{name}.md"]
    with replacing(files[0]) as new:
        table.to_csv(new, index=table.index.name is not None, lineterminator="\n")
    with replacing(files[1]) as new:
        new.write_text(text.rstrip() + "\n", encoding="utf-8")
    return files


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG; the same data give the same bytes."""
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    with saving():
        for file in files:
            # No date in the file, which would change its bytes.
            meta = {"Date": None} if file.suffix == ".svg" else {"Software": None}
            with replacing(file) as new:
                figure.savefig(new, dpi=DOTS_PER_INCH, metadata=meta, format=file.suffix[1:])
    return files


def show(frame: pd.DataFrame, console: Console) -> None:
    """Print a table per model and task: scalings down, lengths across, 95 % intervals."""
    for (model, task), table in wide(frame).items():
        metric = frame.loc[frame["task"] == task, "metric"].iloc[0]
        console.print(f"\n{task}, {metric} [95 % interval], {model}", markup=False, highlight=False)
        drawn = Table(box=box.SIMPLE)
        drawn.add_column("scaling", no_wrap=True)
        for column in table.columns:
            drawn.add_column(str(column), justify="right")
        for scaling, row in table.iterrows():
            drawn.add_row(str(scaling), *map(str, row))
        console.print(drawn)
