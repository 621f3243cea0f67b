"""What a sweep measures: cells, the questions in them, and what is answered together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from scaling.types import Rotation
from tasks.types import ModelRequest, Request

Key = tuple[str, str]  # a cell's key and a question's digest


@dataclass(frozen=True)
class Cell:
    """One square of the sweep. Cells of equal ``key`` are the same measurement.

    ``rotation`` is what the method returned at this length; ``failed`` says why there is none.
    ``wider`` are the bands of a longer length that begin with it: both are then measured under
    those, so that one attention is checked on the model and has its tables made.
    """

    scaling: str
    task: str
    length: int
    rotation: Rotation | None
    key: str
    questions: tuple[Request, ...]
    failed: str | None = None
    wider: Rotation | None = None

    @cached_property
    def frequencies(self) -> str | None:
        """The fingerprint of the rotation, which names it in the records."""
        return None if self.rotation is None else self.rotation.fingerprint

    @cached_property
    def batch(self) -> str | None:
        """The fingerprint of the rotation that its questions are asked under."""
        return self.frequencies if self.wider is None else self.wider.fingerprint


class Item(NamedTuple):
    """One question of a cell: what a sample is measured of."""

    cell: Cell
    question: Request

    @property
    def key(self) -> Key:
        """Its one identity, in memory, between processes and in the records."""
        return self.cell.key, self.question.digest


@dataclass(frozen=True)
class Batch:
    """Questions that are answered together, under one rotation."""

    rotation: Rotation
    items: tuple[Item, ...]

    @property
    def questions(self) -> dict[Key, ModelRequest]:
        """The questions by their identity, without their cells; none is a group."""
        return {
            item.key: request for item in self.items for request in item.question.model_requests
        }

    @property
    def tokens(self) -> int:
        """The tokens of all inputs."""
        return sum(item.question.length for item in self.items)
