"""Print what reports say: on one screen after a run, and whole on request."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.padding import Padding

from harness.api.report import Reports
from harness.cli.tables import print_sentences, print_skipped, print_words, show
from harness.names import printable
from harness.reports._write import Written
from harness.reports.best import answer
from harness.reports.plots.methods import methods
from harness.reports.writing.sentences import text
from harness.reports.writing.tables import headed, wide
from harness.stats.cells import cells

VERDICT = "best"  # the report that answers what a sweep is made for; its words are first
MOST_LENGTHS, MOST_METHODS = 3, 16  # of a screen of 80 x 40


def print_whole(reports: Reports, console: Console) -> None:
    """Print the verdict and the scores."""
    frame, tables = reports.frame, reports.written.tables
    _print_note(reports, console)
    print_words({name: one.summary for name, one in tables.items()}, console)
    show(headed(wide(cells(frame)), frame), console)
    print_skipped(reports.written, console)
    _print_unscored(reports, console)


def print_chosen(reports: Reports, console: Console) -> None:
    """Print the sentences, tables and notes of reports that were requested by name."""
    _print_note(reports, console)
    for name, table in reports.written.tables.items():
        console.print(f"\n{name}", style="bold")
        print_sentences(table.summary, console)
        show(table.display, console)
        print_sentences(table.notes, console)
    print_skipped(reports.written, console)
    _print_unscored(reports, console)


def print_brief(reports: Reports, runs: Sequence[Path], console: Console) -> None:
    """Print what fits on a screen, and where everything else is."""
    _print_note(reports, console)
    brief(reports.frame, reports.written, console)
    _print_unscored(reports, console)
    print_rest(reports.page, runs, console)


def brief(frame: pd.DataFrame, written: Written, console: Console) -> None:
    """Print what to use at the longest lengths, and all scores at the longest."""
    several = frame["model"].nunique() > 1
    if VERDICT in written.tables:
        for decision in answer(written.tables[VERDICT].table):
            _answer(decision, f", {decision['model']}" if several else "", console)
    known = methods(frame)
    for model, rows in known.drawn(cells(frame)).groupby("model", sort=False):
        scores = _longest(rows, known.best)
        most = MOST_METHODS if len(scores.columns) < 4 else MOST_METHODS // 2
        title = f"{model}, {rows['length'].max():,} tokens, score [95 % interval]"
        show(headed({title: scores.head(most)}, frame), console)
        if len(scores) > most:
            console.print(f"… and {len(scores) - most} more methods.")
    if written.failed:
        print_skipped(written, console)


def _answer(model: dict[str, Any], named: str, console: Console) -> None:
    """Print, for the longest lengths, the method to use on every task and on each."""
    beyond = [row for row in model["lengths"] if row["beyond"]] or model["lengths"]
    for row in beyond[-MOST_LENGTHS:]:
        tokens, times = f"{row['length']:,} tokens", row["relative"].replace("×", "x")
        where = f"At {f'{times} ({tokens})' if times else tokens}{named}"
        several = len(model["tasks"]) > 1 and row["use"]
        every = f", on all tasks: use {row['use']}, {row['bound']}" if several else ":"
        console.print(f"{where}{every}", style="bold", soft_wrap=True)
        measures = [head["measure"] for head in model["tasks"]]
        for head, cell in zip(model["tasks"], row["tasks"], strict=True):
            if cell is not None:
                label = f" ({head['task']})" if measures.count(head["measure"]) > 1 else ""
                text = "; ".join(part for part in (cell["told"], cell["more"]) if part)
                line = f"{head['measure']}{label}: use {cell['use']} {cell['score']}; {text}"
                console.print(Padding(line.removesuffix("; "), (0, 0, 0, 2)))
    if len(beyond) > MOST_LENGTHS:
        console.print(f"  … and {len(beyond) - MOST_LENGTHS} shorter lengths.")


def _longest(rows: pd.DataFrame, best: Sequence[str]) -> pd.DataFrame:
    """Return the scores of one model at its longest length: one row per method, the best first."""
    last = rows[rows["length"] == rows["length"].max()]
    texts = last.assign(text=[text(cell) for cell in last.to_dict("records")])
    wide: pd.DataFrame = texts.pivot(index="scaling", columns="task", values="text").fillna("")
    order = [name for name in best if name in wide.index]
    return wide.reindex(index=order, columns=list(last["task"].unique())).reset_index()


def _print_note(reports: Reports, console: Console) -> None:
    if reports.note:
        console.print(reports.note, style="bold")


def _print_unscored(reports: Reports, console: Console) -> None:
    for reason in reports.unscored:
        console.print(f"No score: {reason}", soft_wrap=True)


def print_files(reports: Reports, console: Console) -> None:
    """Print every file that was written."""
    if reports.written.files:
        console.print("\nTables and figures:")
    for stem, files in groupby(reports.written.files, lambda file: file.with_suffix("")):
        first, *others = (file.suffix for file in files)
        names = " ".join([f"{printable(str(stem))}{first}", *others])
        console.print(f"  {names}", soft_wrap=True)
    if reports.page is not None:
        console.print(f"Page: {printable(str(reports.page))}", soft_wrap=True)


def print_rest(page: Path | None, runs: Sequence[Path], console: Console) -> None:
    """Print where everything is that the screen leaves out."""
    folders = " ".join(shlex.quote(str(run)) for run in runs)
    for line in (
        f"Charts and tables, one page: {page}",
        f"More tables and figures: ropewalk report {folders} --report all",
    ):
        console.print(printable(line), soft_wrap=True)
