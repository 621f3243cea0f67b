"""Tables for people: a score and its interval in one text, scalings down and lengths across."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

import pandas as pd
from tabulate import LATEX_ESCAPE_RULES, MIN_PADDING, tabulate

from ropewalk.harness.reports._sentences import (
    markdown_sentence,
    markdown_text,
    text,
)
from ropewalk.harness.stats.cells import records


@dataclass(frozen=True)
class RenderedTable:
    """A table report: what it is about, its rows, its tables for people, and what they mean."""

    about: str
    table: pd.DataFrame
    display: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    notes: Sequence[str] = ()

    JSON = ("about", "table", "notes")


ESCAPES = str.maketrans(dict[str, Any](LATEX_ESCAPE_RULES))
LATEX_SIGNS = str.maketrans(
    {
        "−": "$-$", "≥": r"$\geq$", "≤": r"$\leq$", "±": r"$\pm$", "×": r"$\times$", "|": "$|$",
        "ρ": r"$\rho$", "◂": r"$\triangleleft$", "▸": r"$\triangleright$",
        "▾": r"$\bigtriangledown$", "†": r"$\dagger$",
    }
)  # fmt: skip
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


def as_text(table: pd.DataFrame, width: int = 80) -> str:
    """Return a table in columns, in parts with the same first column where it is too wide."""
    names = [str(name) for name in table]
    rows = [[str(cell) for cell in row] for row in without_missing(table).to_numpy().tolist()]
    head = [f"{name}{' ' * MIN_PADDING}" for name in names]  # as tabulate widens it
    if sum(_widths([head, *rows])) > width:  # an interval is below its score
        rows = [[row[0], *(cell.replace(" [", "\n[") for cell in row[1:])] for row in rows]
    parts = []
    for columns in parted(_widths([head, *rows]), width):
        shown = [[row[at] for at in columns] for row in rows]
        align = ["left", *["right"] * (len(columns) - 1)]
        heads = [names[at] for at in columns]
        parts.append(tabulate(shown, heads, "simple", colalign=align, disable_numparse=True))
    return "\n\n".join(parts)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    columns = zip(*rows, strict=True)
    return [max(len(line) for cell in own for line in cell.split("\n")) + 2 for own in columns]


def folded(text: str, width: int = 80) -> str:
    """Return a text in lines of this width, none of which breaks a number with its interval."""
    kept = re.sub(r"(?<=\d)(,?) (?=[\[+−\d%])", "\\1\u00a0", text).replace(" pp", "\u00a0pp")
    return "\n".join(wrap(kept, width, subsequent_indent="  ", break_long_words=False)).replace(
        "\u00a0", " "
    )


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


def csv(table: pd.DataFrame) -> str:
    """Return a table for programs and spreadsheets."""
    return table.to_csv(index=False, lineterminator="\n")


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


def latex(table: pd.DataFrame, caption: str, label: str, bold: pd.DataFrame | None = None) -> str:
    """Return a table of LaTeX, which needs the package booktabs.

    ``bold`` is a table of the same shape with a text in the place of every cell that is bold.
    """
    shown = without_missing(table).astype(str)
    style = shown.style.hide(axis="index").format(escape="latex")
    style = style.format_index(escape="latex", axis=1)
    if bold is not None:
        marks = bold.iloc[:, 1:].replace({"": None}).notna()
        style = style.apply(lambda _: _marked(shown, marks), axis=None)
    text = style.to_latex(
        hrules=True,
        caption=caption.translate(ESCAPES),
        label=f"tab:{label}",
        column_format="l" + "r" * (len(table.columns) - 1),
        position_float="centering",
    )
    return str(text).translate(LATEX_SIGNS)


def _marked(shown: pd.DataFrame, marks: pd.DataFrame) -> pd.DataFrame:
    known = marks.reindex(columns=shown.columns, fill_value=False)
    return known.replace({True: "textbf:--rwrap;", False: ""})
