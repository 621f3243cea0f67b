"""The cells of a plan: what every method does at every length, and the questions asked there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from harness.errors import UserError
from harness.methods.resolve import over_lengths, wider_of
from harness.models.checkpoint import Checkpoint
from harness.names import printable
from harness.plugins import Plugin
from harness.runs.comparable import deciding
from harness.sweep.cells import Cell
from scaling.types import Rotation
from tasks.types import Request

Asked = Mapping[str, Mapping[int, Sequence[Request]]]  # by task label and length
Found = Mapping[tuple[str, int], Rotation | UserError]  # by method label and length


def rotations(
    checkpoint: Checkpoint, methods: Sequence[Plugin], lengths: Sequence[int]
) -> dict[tuple[str, int], Rotation | UserError]:
    """Return what every method does at every length, or why it fails there.

    Raises UserError for a method whose options are wrong.
    """
    return {
        at: _beyond(checkpoint, at[1]) or one
        for at, one in over_lengths(methods, checkpoint.rope, lengths).items()
    }


def make_cells(
    checkpoint: Checkpoint, tasks: Sequence[Plugin], found: Found, asked: Asked
) -> tuple[Cell, ...]:
    """Return the cells of every task, method and length."""
    wider = wider_of(found)
    return tuple(
        _cell(checkpoint, label, task, length, one, wider, asked[task.label][length])
        for task in tasks
        for (label, length), one in found.items()
    )


def _beyond(checkpoint: Checkpoint, length: int) -> UserError | None:
    """Return why a model with so many positions cannot read a length, None where it can."""
    if checkpoint.positions is None or length <= checkpoint.positions:
        return None
    message = (
        f"{checkpoint.label} has positions for {checkpoint.positions:,} tokens and cannot read"
        f" {length:,}."
    )
    return UserError(message)


def _cell(
    checkpoint: Checkpoint,
    method: str,
    task: Plugin,
    length: int,
    found: Rotation | UserError,
    wider: Mapping[str, Rotation],
    asked: Sequence[Request],
) -> Cell:
    questions = tuple(asked)
    if isinstance(found, UserError):
        key, told = _key(checkpoint, None, task, length), printable(str(found))
        return Cell(method, task.label, length, None, key, questions, told)
    fingerprint = found.fingerprint
    key, longer = _key(checkpoint, fingerprint, task, length), wider.get(fingerprint)
    return Cell(method, task.label, length, found, key, questions, wider=longer)


def _key(checkpoint: Checkpoint, fingerprint: str | None, task: Plugin, length: int) -> str:
    """Hash all a sample's number depends on but its question."""
    parts = [
        checkpoint.fingerprint,
        checkpoint.dtype,
        fingerprint,
        task.module.__name__.rpartition(".")[2],
        task.digest,
        task.module.VERSION,
        deciding(task.options),
        length,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
