"""Tables for people: a score and its interval in one text, scalings down and lengths across."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
from pandas.api.types import is_numeric_dtype

from harness.reports.writing.sentences import (
    csv_text,
    latex_text,
    markdown_sentence,
    markdown_text,
    text,
)


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


Part = tuple[Mapping[str, pd.DataFrame], Sequence[str]]  # tables by their titles, and sentences


def wide(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return a table of texts per model and task of a table of cells: scores, lengths across."""
    return across(table.assign(text=[text(cell) for cell in table.to_dict("records")]))


def across(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Put the column ``text`` of every length side by side, a table per model and task."""
    tables = {}
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        facts = rows.to_dict("records")
        heads = {
            cell["length"]: f"{cell['length']} ({cell['relative_length']:.3g}×)" for cell in facts
        }
        lengths = sorted(heads)
        texts = rows.pivot(index="scaling", columns="length", values="text")
        texts = texts.reindex(index=rows["scaling"].unique(), columns=lengths).fillna("")
        texts.columns = pd.Index([heads[length] for length in lengths])
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


def markdown(table: pd.DataFrame) -> str:
    """Return a pipe table; what is missing is empty."""
    plain = without_missing(table).map(markdown_text)
    plain = plain.rename(columns=markdown_text)
    return plain.to_markdown(index=False, disable_numparse=True)


def page(parts: Sequence[Part]) -> str:
    """Return a Markdown page: of every part what it says, then each table under its title."""
    texts = []
    for shown, words in parts:
        texts += [f"{markdown_sentence(sentence)}\n" for sentence in words]
        texts += [
            f"### {markdown_text(title)}\n\n{markdown(table)}\n" for title, table in shown.items()
        ]
    return "\n".join(texts)


def joined(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose lists of texts are one text each."""
    of = {str(name): column.map(_text) for name, column in table.items() if column.dtype == object}
    return table.assign(**of)


def _text(cell: object) -> object:
    return ", ".join(cell) if isinstance(cell, list) else cell


def csv(table: pd.DataFrame) -> str:
    """Return a table for programs and spreadsheets; no name becomes a formula."""
    table = joined(table)
    texts = [name for name in table if not is_numeric_dtype(table[name])]
    plain = table.assign(**{str(name): table[name].map(csv_text) for name in texts})
    return plain.to_csv(index=False, lineterminator="\n")


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


COLUMN, PAGE = 240, 345  # points: a column of a two-column paper, the text of ``article``
WIDEST = 110  # points; a wider cell is broken into lines
MOST_ROWS = 45
GAP = 8  # points between columns: two \tabcolsep
NARROW = frozenset(" .,:;'|!()[]fijlt")


def latex(table: pd.DataFrame, caption: str) -> str:
    """Return a LaTeX table, in several parts that say so where one would be too wide or too long.

    Up to a column wide it is a ``table``, wider a ``table*``; it needs the package booktabs. The
    caption is the first sentence of ``caption``; the others are notes under the last part.
    """
    title, _, notes = caption.partition(". ")
    texts = without_missing(table).astype(str)
    widths = [min(WIDEST, width) + GAP for width in _widths(texts)]
    heights = range(0, max(1, len(texts)), MOST_ROWS)
    pieces = [
        (texts.iloc[row : row + MOST_ROWS, columns], sum(widths[index] for index in columns))
        for columns in parted(widths, PAGE)
        for row in heights
    ]
    made = []
    for number, (piece, width) in enumerate(pieces, start=1):
        part = f" (Part {number} of {len(pieces)}.)" if len(pieces) > 1 else ""
        told = f"{_sentence(title.rstrip('.'))}.{part}"
        under = _sentence(notes) if number == len(pieces) else ""
        made.append(_float(piece, told, under, "table" if width <= COLUMN else "table*"))
    return "\n".join(made)


def _float(texts: pd.DataFrame, caption: str, notes: str, kind: str) -> str:
    wide = [width > WIDEST for width in _widths(texts)]
    form = [f"p{{{WIDEST}pt}}" if broken else "l" for broken in wide]
    rows = [[*map(str, texts.columns)], *texts.to_numpy().tolist()]
    head, *body = (" & ".join(map(_cell, row, wide)) + r" \\" for row in rows)
    under = [r"\par\smallskip\parbox{\linewidth}{\raggedright " + notes + "}"] if notes else []
    return "\n".join([
        f"\\begin{{{kind}}}", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{4pt}",
        f"\\caption{{{caption}}}", f"\\begin{{tabular}}{{@{{}}{''.join(form)}@{{}}}}", r"\toprule",
        head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", *under, f"\\end{{{kind}}}", "",
    ])  # fmt: skip


def _cell(text: str, broken: bool) -> str:
    """Return a cell's text; one that is broken into lines may be so where options begin."""
    plain = latex_text(text)
    return rf"\raggedright\arraybackslash {_breakable(plain)}" if broken else plain


def _breakable(text: str) -> str:
    return re.sub(r"([:,=/])(?=\S)", r"\1\\allowbreak{}", text)


def _sentence(text: str) -> str:
    """Return a sentence with its `names` in typewriter letters."""
    parts = latex_text(text).split("`")
    return "".join(
        rf"\texttt{{{_breakable(part)}}}" if place % 2 else part for place, part in enumerate(parts)
    )


def _widths(texts: pd.DataFrame) -> list[float]:
    """Return how wide every column is about, in points of Computer Modern at 8 points."""
    return [
        max(sum(2.5 if sign in NARROW else 4.6 for sign in text) for text in (str(head), *cells))
        for head, cells in texts.items()
    ]
