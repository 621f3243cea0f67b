"""Print tables and sentences in the terminal, in its width."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from textwrap import wrap

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from ropewalk.harness.reports.writing.tables import parted, without_missing

UNBROKEN = re.compile(r"(?<=\d)(,?) (?=[\d%])")  # "5 %", "[8.2, 15.5]"
MOST_NAME = 24  # letters in a line of a name in a narrow terminal


def show(tables: Mapping[str, pd.DataFrame], console: Console) -> None:
    """Print tables of texts, each under its title."""
    for title, table in tables.items():
        console.print(f"\n{title}")
        for part in grids(table, console.width):
            console.print(part)


def grids(table: pd.DataFrame, width: int) -> list[Table]:
    """Return a table of texts for a terminal of this width, in parts where it is too wide.

    No number is broken: an interval is below its score where both do not fit in one line. What is
    missing is empty.
    """
    rows = without_missing(table).to_numpy().tolist()
    texts = [[*map(str, row)] for row in (list(table.columns), *rows)]
    for row in texts:
        row[0] = "\n".join(wrap(row[0], max(MOST_NAME, width // 3)))
    if sum(_widths(texts)) > width:
        texts = [
            [row[0], *(re.sub(r" (?=[\[(])", "\n", cell) for cell in row[1:])] for row in texts
        ]
    grids = []
    for columns in parted(_widths(texts), width):
        grid = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
        for index in columns:
            grid.add_column(texts[0][index], justify="right" if index else "left", no_wrap=True)
        for row in texts[1:]:
            grid.add_row(*(row[index] for index in columns))
        grids.append(grid)
    return grids


def _widths(texts: Sequence[Sequence[str]]) -> list[int]:
    columns = zip(*texts, strict=True)
    return [max(cell_len(line) for cell in one for line in cell.split("\n")) + 3 for one in columns]


def print_sentences(sentences: Sequence[str], console: Console) -> None:
    """Print sentences, no interval of which is broken."""
    for sentence in sentences:
        line = Table.grid(padding=(0, 1))
        line.add_row("•", "\n".join(wrap(UNBROKEN.sub("\\1\u00a0", sentence), console.width - 2)))
        console.print(line)
