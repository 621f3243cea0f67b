"""What a tracker is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Tracked(Protocol):
    """A run in a tracker: ``begin(name, settings, known, *, options…)`` of a file returns it.

    ``known`` is the id of the run that is continued, None for a new one. Whatever it raises is a
    warning, and what was not sent is sent later.
    """

    id: str
    place: str  # where a person sees it

    def scores(self, length: int, values: Mapping[str, float]) -> None:
        """Send what was scored at a length in tokens, which is the step."""

    def files(self, folder: Path) -> None:
        """Send all files of a folder, page, tables and figures."""

    def end(self, *, finished: bool) -> None:
        """Send what is left and close the run; not ``finished``: it will be continued."""
