"""Names as text, not as markup: a model, a document or a file may be called anything."""

from __future__ import annotations

import re

MARKUP = re.compile(r"([\\`*<|~$]|](?=[(\[:]))")


def markdown_text(text: object) -> object:
    """Return a text whose signs Markdown takes as they are; what is no text stays as it is.

    A ``_`` inside a word, a ``#`` inside a line and brackets without a link are no markup.
    """
    return MARKUP.sub(r"\\\1", " ".join(text.split())) if isinstance(text, str) else text
