"""Read the documents sentence by sentence, in tokens."""

from __future__ import annotations

import re

from tasks._prompt import continued
from tasks._types import Source

END = re.compile(r"(?<=[.!?]) ")
CHUNK = 20_000  # tokens that are decoded at once


def sentences(source: Source, room: int) -> list[list[int]]:
    """Return the first sentences of the documents, each after a space, of ``room`` tokens or more.

    White space is a single space, as in RULER. Raises ValueError where the documents have less.
    """
    found: list[list[int]] = []
    held = 0
    for passage in source.passages():
        for first in range(0, len(passage.tokens), CHUNK):
            text = source.decode(passage.tokens[first : first + CHUNK])
            for sentence in END.split(" ".join(text.split())):
                found.append(continued(source, f" {sentence}"))
                held += len(found[-1])
                if held >= room:
                    return found
    message = f"the documents have {held} tokens of sentences where {room} are needed"
    raise ValueError(message)
