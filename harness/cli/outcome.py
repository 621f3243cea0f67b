"""Print what reports say: on one screen after a run, and whole on request."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from ropewalk.harness.api.report import Reports
from ropewalk.harness.cli.console import COMPLETE, HOLDS, UNKNOWN, WITH_FAILURES
from ropewalk.harness.cli.tables import print_sentences, show
from ropewalk.harness.names import printable
from ropewalk.harness.reports._write import Written
from ropewalk.harness.reports.best import answer
from ropewalk.harness.reports.writing.tables import headed, wide
from ropewalk.harness.stats.cells import cells

VERDICT = "best"  # the report that answers what a sweep is made for; its words are first
MOST_MODELS, MOST_TASKS = 6, 3  # with what follows, eight lines


def print_tables(reports: Reports, console: Console, *, chosen: bool) -> None:
    """Print the verdict and the scores, or all of the reports that were ``chosen`` by name."""
    _print_note(reports, console)
    for name, table in reports.written.tables.items():
        if chosen or table.summary:
            console.print(f"\n{name}", style="bold")
        print_sentences(table.summary, console)
        if chosen:
            show(table.display, console)
            print_sentences(table.notes, console)
    if not chosen:
        show(headed(wide(cells(reports.frame)), reports.frame), console)
    _print_left_out(reports, console)


def print_brief(reports: Reports, runs: Sequence[Path], console: Console) -> None:
    """Print what fits on a screen, and where everything else is."""
    _print_note(reports, console)
    brief(reports.frame, reports.written, console)
    _print_left_out(reports, console, skipped=reports.written.failed)
    folders = " ".join(shlex.quote(str(run)) for run in runs)
    for line in (
        f"Charts and tables, one page: {reports.page}",
        f"More tables and figures: ropewalk report {folders} --report all",
    ):
        console.print(printable(line), soft_wrap=True)


def brief(frame: pd.DataFrame, written: Written, console: Console) -> None:
    """Print what to use at the longest length, in at most six lines below the recommendation.

    Where there is nothing to choose by, the scores say why.
    """
    if VERDICT not in written.tables:
        show(headed(wide(cells(frame)), frame), console)
        return
    models = answer(written.tables[VERDICT].table)
    for model in models[:MOST_MODELS]:
        last = model["lengths"][-1]
        named = f" for {model['model']}" if len(models) > 1 else ""
        use = f"Use {last['use']}" if last["use"] else "No one method to use"
        parts = [f"{use}{named} at {_where(last)}", last["bound"]]
        _line(": ".join(filter(None, parts)), console, style="bold")
    if len(models) > MOST_MODELS:
        _line(f"… and {len(models) - MOST_MODELS} more models", console)
    if len(models) == 1:
        _details(models[0], console)


def _details(model: dict[str, Any], console: Console) -> None:
    """Print the score of every task at the longest length, and the methods of shorter ones."""
    *shorter, last = model["lengths"]
    measures = [head["measure"] for head in model["tasks"]]
    known = [pair for pair in zip(model["tasks"], last["tasks"], strict=True) if pair[1]]
    for head, cell in known[:MOST_TASKS]:
        label = f" ({head['task']})" if measures.count(head["measure"]) > 1 else ""
        use = cell["use"]
        other = "" if use.partition(" ")[0] in ("", last["use"]) else f"{use} "
        parts = [f"  {head['measure']}{label}: {other}{cell['score']}", cell["told"]]
        _line("; ".join(filter(None, parts)).partition(" than the best")[0], console)
    if len(known) > MOST_TASKS:
        _line(f"  … and {len(known) - MOST_TASKS} more tasks", console)
    for _, cell in known:
        if "truncation" in cell["more"]:
            _line(f"  {cell['more'].split('; ')[-1]}", console)
            break
    beyond = [row for row in shorter if row["beyond"] and row["use"]]
    if beyond:
        others = "; ".join(f"{row['use']} at {_where(row)}" for row in reversed(beyond))
        _line(f"  Shorter: {others}", console)


def _where(row: dict[str, Any]) -> str:
    times = row["relative"].replace("×", "x")
    tokens = f"{row['length']:,} tokens"
    return f"{times} ({tokens})" if times else tokens


def _line(text: str, console: Console, style: str = "") -> None:
    """Print one line, cut off where the terminal ends."""
    console.print(text, style=style, no_wrap=True, overflow="ellipsis")


def _print_note(reports: Reports, console: Console) -> None:
    if reports.note:
        console.print(reports.note, style="bold")


def _print_left_out(reports: Reports, console: Console, *, skipped: bool = True) -> None:
    """Print why reports do not apply, and why tasks have no score."""
    for name, reason in reports.written.skipped.items() if skipped else ():
        console.print(f"No {name}: {reason}")
    for reason in reports.unscored:
        console.print(f"No score: {reason}", soft_wrap=True)


def print_conditions(reports: Reports, console: Console) -> None:
    """Print what was found of every condition of --fail-if."""
    words = {True: "Failed", False: "Passed", None: "Not evaluated"}
    for one in reports.conditions:
        line = f"{words[one.holds]}: {one.condition}: {one.text}."
        style = "" if one.holds is False else "bold"
        console.print(printable(line), style=style, soft_wrap=True)


def status_of(reports: Reports, *, complete: bool) -> int:
    """Return the exit status of reports: that of a condition comes before that of a failure."""
    known = {one.holds for one in reports.conditions}
    if True in known:
        return HOLDS
    if None in known:
        return UNKNOWN
    return COMPLETE if complete else WITH_FAILURES


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
    if reports.card is not None:
        console.print(f"Card: {printable(str(reports.card))}", soft_wrap=True)
