"""Names as text, not as markup: a model, a document or a file may be called anything."""

from __future__ import annotations

import re

MARKUP = re.compile(r"([\\`*<|~$]|](?=[(\[:]))")


def markdown_text(text: object) -> object:
    """Return a text whose signs Markdown takes as they are; what is no text stays as it is.

    A ``_`` inside a word, a ``#`` inside a line and brackets without a link are no markup.
    """
    return MARKUP.sub(r"\\\1", " ".join(text.split())) if isinstance(text, str) else text


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def latex_text(text: str) -> str:
    """Return a text whose signs LaTeX takes as they are, but for `names` in backticks."""
    return re.sub(r"[\\~^#$%&_{}]", lambda sign: LATEX.get(sign[0], f"\\{sign[0]}"), text)
