"""Run a model with what a method returned, whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from harness.engine import Sizes, answers
from harness.rope.frequencies import patched
from harness.rope.positions import banded
from harness.rope.stateful import served_answers
from scaling._bands import Bands
from scaling._rotation import Rotation
from scaling._served import Served
from tasks._types import Answer, Question

Answering = Callable[[Any, Sequence[Question]], Iterator[tuple[int, Answer | None]]]


def scaled(model: Any, rotation: Rotation) -> AbstractContextManager[None]:
    """Run a loaded causal language model with a rotation; restore it bit for bit on exit.

    Raises UserError, naming the model, where it cannot be run so.
    """
    if isinstance(rotation, Served):
        return nullcontext()  # its state begins anew with every question
    return banded(model, rotation) if isinstance(rotation, Bands) else patched(model, rotation)


def answering(rotation: Rotation, sizes: Sizes) -> Answering:
    """Return how questions are answered under a rotation, so much at a time."""
    if isinstance(rotation, Served):
        return partial(served_answers, rotation)
    return partial(answers, sizes=sizes)
