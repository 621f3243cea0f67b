"""Tables for people: a score and its interval in one text, scalings down and lengths across."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from harness.reports._cells import cells
from harness.reports._escape import markdown_text


def wide(frame: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Return a table of texts per (model, task): a row a scaling, a column a length."""
    tables = {}
    for (model, task), rows in cells(frame).groupby(["model", "task"], sort=False):
        facts = rows.to_dict("records")
        heads = {cell["length"]: f"{cell['length']} ({cell['stretch']:.3g}×)" for cell in facts}
        lengths = sorted(heads)
        texts = rows.assign(text=[text(cell) for cell in facts])
        across = texts.pivot(index="scaling", columns="length", values="text")
        across = across.reindex(index=rows["scaling"].unique(), columns=lengths).fillna("")
        across.columns = pd.Index([heads[length] for length in lengths])
        tables[str(model), str(task)] = across
    return tables


def markdown(table: pd.DataFrame) -> str:
    """Return a pipe table of ``table``, its index first where that has a name."""
    named = table.index.name is not None
    plain = table.map(markdown_text).rename(index=markdown_text, columns=markdown_text)
    return plain.astype(object).where(plain.notna(), None).to_markdown(index=named)


def text(cell: Mapping[Any, Any]) -> str:
    """Return "12.3 [11.0, 13.9]", "85% [76, 91]", or the status where there is no score."""
    score, status = cell["score"], cell["status"]
    if pd.isna(score):
        return str(status).replace("_", " ")
    scale, unit = (100, "%") if cell["metric"] == "accuracy" else (1, "")
    digits = 0 if unit or score >= 100 else 1 if score >= 10 else 2
    value = f"{scale * score:.{digits}f}{unit}"
    if pd.notna(cell["low"]) and pd.notna(cell["high"]):
        value += f" [{scale * cell['low']:.{digits}f}, {scale * cell['high']:.{digits}f}]"
    return value if status == "ok" else f"{value} ({status.split(' ok')[0]})"
