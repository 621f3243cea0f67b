"""What a paper asks of its figures: their width, a style, which methods, under which names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

PAGE, COLUMN = 7.0, 3.3  # inches: the text of a two-column paper, and one of its columns


@dataclass(frozen=True)
class Paper:
    """How figures are drawn for one paper.

    ``style`` are settings of Matplotlib by name; ``only`` and ``order`` name methods as they were
    measured, ``names`` and ``colours`` say what these are called and which colour they have.
    Nothing of it changes what is computed: what is left out of a figure counts in the corrections.
    """

    width: float = PAGE
    style: Any = None
    only: Sequence[str] = ()
    order: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    colours: Mapping[str, str] = field(default_factory=dict)

    def kept(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the methods that are drawn, in their order, by their label: "ntk = dynamic_ntk".

        A method that coincides with others is drawn where any of them is.
        """
        parts = {name: label.split(" = ") for name, label in labels.items()}
        drawn = [
            name for name in labels if not self.only or any(p in self.only for p in parts[name])
        ]
        place = {name: rank for rank, name in reversed(list(enumerate(self.order or self.only)))}
        drawn.sort(key=lambda name: min(place.get(part, math.inf) for part in parts[name]))
        return {
            name: " = ".join(dict.fromkeys(self.names.get(part, part) for part in parts[name]))
            for name in drawn
        }

    def colour(self, label: str) -> str | None:
        """Return the colour that a method, or one that coincides with it, is to have."""
        return next((self.colours[p] for p in label.split(" = ") if p in self.colours), None)

    def across(self, panels: int) -> int:
        """Return how many of so many panels of a page are side by side at this width."""
        return max(1, min(panels, math.floor(panels * self.width / PAGE)))

    def tall(self, inches: float) -> float:
        """Return the height of a panel: in a column lower, as it is less wide."""
        return inches if self.width >= PAGE else 0.75 * inches


_PAPER: ContextVar[Paper | None] = ContextVar("_PAPER", default=None)


def paper() -> Paper:
    """Return what is drawn for: set by ``drawing``, by default a page."""
    return _PAPER.get() or Paper()


@contextmanager
def drawn_for(asked: Paper | None) -> Iterator[None]:
    """Draw for this paper."""
    before = _PAPER.set(asked)
    try:
        yield
    finally:
        _PAPER.reset(before)
