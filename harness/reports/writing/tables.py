"""Tables for people: a score and its interval in one text, scalings down and lengths across."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from harness.reports.stats.measure import SHARES
from harness.reports.writing.escape import csv_text, markdown_sentence, markdown_text


@dataclass(frozen=True)
class RenderedTable:
    """A table report as it was made: what it is, its sentences and its rows.

    ``shown`` are its tables for people, and ``legend`` says what their marks mean.
    """

    about: str
    words: Sequence[str]
    table: pd.DataFrame
    shown: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    legend: Sequence[str] = ()


SMALL = 0.1  # scores below it, as divergences in nats, differ by less than a hundredth
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


def text(cell: Mapping[Any, Any], digits: int | None = None) -> str:
    """Return "12.3 [11.0, 13.9]", "85% [76, 91]", or the status where there is no score.

    Unset, ``digits`` after the point are as many as the size of the score calls for.
    """
    score, status = cell["score"], cell["status"]
    if pd.isna(score):
        return str(status).replace("_", " ")
    scale, unit = (100, "%") if cell["metric"] in SHARES else (1, "")
    if digits is None:
        size = abs(score)
        digits = 0 if unit or size >= 100 else 1 if size >= 10 else 2 if size >= SMALL else 4
    value = f"{scale * score:.{digits}f}{unit}"
    if pd.notna(cell["low"]) and pd.notna(cell["high"]):
        value += f" [{scale * cell['low']:.{digits}f}, {scale * cell['high']:.{digits}f}]"
    return value if status == "ok" else f"{value} ({status.split(' ok')[0]})"
