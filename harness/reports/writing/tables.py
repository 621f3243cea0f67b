"""Tables for people: a score and its interval in one text, scalings down and lengths across."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from tabulate import tabulate

from ropewalk.harness.reports.writing.sentences import (
    LATEX_SIGNS,
    latex_sentence,
    markdown_sentence,
    markdown_text,
    text,
)
from ropewalk.harness.stats.cells import records


@dataclass(frozen=True)
class RenderedTable:
    """A table report: what it is about, its summary in sentences, and its rows.

    ``display`` are its tables for people, and ``notes`` say what their marks mean.
    """

    about: str
    summary: Sequence[str]
    table: pd.DataFrame
    display: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    notes: Sequence[str] = ()

    JSON = ("about", "summary", "table", "notes")


Part = tuple[Mapping[str, pd.DataFrame], Sequence[str]]  # tables by their titles, and sentences


def wide(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return a table of texts per model and task of a table of cells: scores, lengths across."""
    return across(table, text)


def across(
    table: pd.DataFrame, written: Callable[[dict[str, Any]], str]
) -> dict[str, pd.DataFrame]:
    """Put the texts of the rows of every length side by side, one table per model and task."""
    tables, table = {}, table.assign(text=list(map(written, records(table))))
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        relative = (
            rows.drop_duplicates("length").set_index("length")["relative_length"].sort_index()
        )
        texts = rows.pivot(index="scaling", columns="length", values="text")
        texts = texts.reindex(index=rows["scaling"].unique(), columns=relative.index).fillna("")
        texts.columns = pd.Index([f"{length} ({of:.3g}×)" for length, of in relative.items()])
        title = heading(str(task), str(rows["metric"].iloc[0]), str(model))
        tables[title] = texts.rename_axis("scaling").reset_index()
    return tables


def headed(tables: Mapping[str, pd.DataFrame], frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Head a frame's methods "model" where they are models that are compared as methods."""
    names = {"scaling": "model"} if "of_model" in frame else {}
    return {title: table.rename(columns=names) for title, table in tables.items()}


def heading(task: str, metric: str, model: str) -> str:
    """Return the title of one model's and task's table; a task named for its metric needs one."""
    named = task if task.partition(":")[0] == metric else f"{task}, {metric}"
    return f"{named} [95 % interval], {model}"


def as_text(table: pd.DataFrame) -> str:
    """Return a table in columns; what is missing is empty."""
    rows = without_missing(table).to_numpy().tolist()
    align = ["left", *["right"] * (len(table.columns) - 1)]
    return str(tabulate(rows, [*table.columns], "simple", colalign=align, disable_numparse=True))


def markdown(table: pd.DataFrame) -> str:
    """Return a pipe table; what is missing is empty."""
    plain = without_missing(table).map(markdown_text)
    plain = plain.rename(columns=markdown_text)
    return plain.to_markdown(index=False, disable_numparse=True)


def page(parts: Sequence[Part]) -> str:
    """Return a Markdown page: the sentences of every part, then each table under its title."""
    texts = []
    for shown, words in parts:
        texts += [f"{markdown_sentence(sentence)}\n" for sentence in words]
        texts += [
            f"### {markdown_text(title)}\n\n{markdown(table)}\n" for title, table in shown.items()
        ]
    return "\n".join(texts)


def joined(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose lists of texts are one text each."""
    lists = {
        str(name): column.map(lambda cell: ", ".join(cell) if isinstance(cell, list) else cell)
        for name, column in table.items()
        if column.dtype == object
    }
    return table.assign(**lists)


def csv(table: pd.DataFrame) -> str:
    """Return a table for programs and spreadsheets."""
    return joined(table).to_csv(index=False, lineterminator="\n")


def parted(widths: Sequence[float], room: float) -> list[list[int]]:
    """Return which columns fit side by side in this room; every part begins with the first."""
    parts: list[list[int]] = [[0]]
    for index in range(1, len(widths)):
        taken = sum(widths[other] for other in parts[-1])
        if len(parts[-1]) > 1 and taken + widths[index] > room:
            parts.append([0])
        parts[-1].append(index)
    return parts


def without_missing(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with empty texts for what is missing."""
    return table.astype(object).where(table.notna(), "")


MOST_ROWS = 45  # of one table of LaTeX
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"


def latex(table: pd.DataFrame, caption: str) -> str:
    """Return tables of LaTeX, which are scaled down where they are wider than the text.

    They need the packages booktabs and graphicx. The caption is the first sentence of ``caption``;
    the others are notes below the last table.
    """
    title, _, notes = caption.partition(". ")
    texts = without_missing(table).astype(str)
    starts = range(0, max(1, len(texts)), MOST_ROWS)
    tables = []
    for number, start in enumerate(starts, start=1):
        part = f" (Part {number} of {len(starts)}.)" if len(starts) > 1 else ""
        rows = texts.iloc[start : start + MOST_ROWS]
        body = tabulate(
            rows.to_dict("list"), headers="keys", tablefmt="latex_booktabs", disable_numparse=True
        )
        tables += [
            r"\begin{table}", r"\centering\footnotesize",
            rf"\caption{{{latex_sentence(title.rstrip('.'))}.{part}}}",
            FIT, body.translate(LATEX_SIGNS) + "}",
        ]  # fmt: skip
        if notes and number == len(starts):
            below = rf"{{\raggedright {latex_sentence(notes)}}}"
            tables.append(rf"\par\smallskip\parbox{{\linewidth}}{below}")
        tables += [r"\end{table}", ""]
    return "\n".join(tables)
