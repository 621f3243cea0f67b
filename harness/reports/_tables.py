"""Tables for people: a score and its interval in one text, scalings down and lengths across."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from tabulate import tabulate

from harness.reports._escape import latex_text, markdown_text

SIGNS = {
    "×": r"$\times$",
    "−": "$-$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "…": r"\dots{}",
}


def wide(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return a table of texts per model and task of a table of cells: scores, lengths across."""
    return across(table.assign(text=[text(cell) for cell in table.to_dict("records")]))


def across(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Put the column ``text`` of every length side by side, a table per model and task."""
    tables = {}
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        facts = rows.to_dict("records")
        heads = {cell["length"]: f"{cell['length']} ({cell['stretch']:.3g}×)" for cell in facts}
        lengths = sorted(heads)
        texts = rows.pivot(index="scaling", columns="length", values="text")
        texts = texts.reindex(index=rows["scaling"].unique(), columns=lengths).fillna("")
        texts.columns = pd.Index([heads[length] for length in lengths])
        title = heading(str(task), str(rows["metric"].iloc[0]), str(model))
        tables[title] = texts.rename_axis("scaling").reset_index()
    return tables


def heading(task: str, metric: str, model: str) -> str:
    """Return the title of one model's and task's table."""
    return f"{task}, {metric} [95 % interval], {model}"


def markdown(table: pd.DataFrame) -> str:
    """Return a pipe table; what is missing is empty."""
    plain = _empty_for_missing(table).map(markdown_text)
    plain = plain.rename(columns=markdown_text)
    return plain.to_markdown(index=False, disable_numparse=True)


def page(shown: Mapping[str, pd.DataFrame], words: Sequence[str]) -> str:
    """Return a Markdown page: each table under its title, and below them what they say."""
    parts = [f"### {markdown_text(title)}\n\n{markdown(table)}\n" for title, table in shown.items()]
    return "\n".join([*parts, *(f"{sentence}\n" for sentence in words)])


def latex(table: pd.DataFrame, caption: str) -> str:
    """Return a LaTeX table with the rules of booktabs, for pdflatex as for the newer engines."""
    rows = _empty_for_missing(table).to_numpy().tolist()
    body = tabulate(rows, list(table.columns), tablefmt="latex_booktabs", disable_numparse=True)
    lines = [
        "\\begin{table}", "\\centering", f"\\caption{{{_escaped(caption)}}}", body, "\\end{table}",
    ]  # fmt: skip
    text = "\n".join(lines) + "\n"
    for sign, command in SIGNS.items():
        text = text.replace(sign, command)
    return text


def _escaped(text: str) -> str:
    """Return a sentence with LaTeX's special signs escaped and `names` in typewriter letters."""
    return re.sub(r"`([^`]*)`", r"\\texttt{\1}", latex_text(text))


def _empty_for_missing(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype(object).where(table.notna(), "")


def text(cell: Mapping[Any, Any], digits: int | None = None) -> str:
    """Return "12.3 [11.0, 13.9]", "85% [76, 91]", or the status where there is no score.

    Unset, ``digits`` after the point are as many as the size of the score calls for.
    """
    score, status = cell["score"], cell["status"]
    if pd.isna(score):
        return str(status).replace("_", " ")
    scale, unit = (100, "%") if cell["metric"] == "accuracy" else (1, "")
    if digits is None:
        digits = 0 if unit or score >= 100 else 1 if score >= 10 else 2
    value = f"{scale * score:.{digits}f}{unit}"
    if pd.notna(cell["low"]) and pd.notna(cell["high"]):
        value += f" [{scale * cell['low']:.{digits}f}, {scale * cell['high']:.{digits}f}]"
    return value if status == "ok" else f"{value} ({status.split(' ok')[0]})"
