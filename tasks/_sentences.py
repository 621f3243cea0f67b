"""Read the documents sentence by sentence, in tokens."""

from __future__ import annotations

import re

from tasks._prompt import continued
from tasks.types import TaskContext

END = re.compile(r"(?<=[.!?]) ")


def sentences(source: TaskContext, room: int) -> list[list[int]]:
    """Return the first sentences of the documents, each after a space, of ``room`` tokens or more.

    White space is a single space, as in RULER. Raises ValueError where the documents have less.
    """
    found: list[list[int]] = []
    held = 0
    for passage in source.passages():
        text = " ".join(source.decode(passage.tokens).split())
        for sentence in END.split(text) if text else ():
            found.append(continued(source, f" {sentence}"))
            held += len(found[-1])
            if held >= room:
                return found
    raise ValueError(f"the documents have {held} tokens of sentences where {room} are needed")
