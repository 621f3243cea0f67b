"""Tables for LaTeX: the rules of booktabs, and widths that fit a column or a page of a paper."""

from __future__ import annotations

import re

import pandas as pd

from harness.reports.writing.escape import latex_text
from harness.reports.writing.tables import parted, without_missing

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
