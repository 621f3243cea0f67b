"""Names as text, not as markup: a model, a document or a file may be called anything."""

from __future__ import annotations

import re

MARKUP = re.compile(r"([\\`*<|~$]|](?=[(\[:]))")


def markdown_text(text: object) -> object:
    """Return a text whose signs Markdown takes as they are; what is no text stays as it is.

    A ``_`` inside a word, a ``#`` inside a line and brackets without a link are no markup.
    """
    return MARKUP.sub(r"\\\1", " ".join(text.split())) if isinstance(text, str) else text


def markdown_sentence(text: str) -> str:
    """Return a sentence whose signs Markdown takes as they are; `names` in backticks stay code."""
    parts = " ".join(text.split()).split("`")
    return "`".join(
        part if place % 2 else MARKUP.sub(r"\\\1", part) for place, part in enumerate(parts)
    )


LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "|": "$|$", "×": r"$\times$", "−": "$-$", "≥": r"$\geq$",
    "≤": r"$\leq$", "±": r"$\pm$", "…": r"\dots{}",
}  # fmt: skip
SPECIAL = re.compile(r"[\\~^#$%&_{}<>|×−≥≤±…]")


def latex_text(text: str) -> str:
    """Return a text whose signs pdfLaTeX takes as they are, but for `names` in backticks."""
    return SPECIAL.sub(lambda sign: LATEX.get(sign[0], f"\\{sign[0]}"), text)


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def without_backticks(value: object) -> object:
    """Return a text, or each of a list of texts, with no backtick that ends a `name`."""
    if isinstance(value, list):
        return [without_backticks(one) for one in value]
    return value.replace("`", "'") if isinstance(value, str) else value


def csv_text(value: object) -> object:
    """Return a text that no spreadsheet takes for a formula; numbers stay as they are."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
