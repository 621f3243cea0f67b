"""``ropewalk.patched``: run a model of your own with a method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ropewalk.harness.errors import UserError
from ropewalk.harness.patching import patch
from ropewalk.scaling.types import Rotation


@contextmanager
def patched(model: Any, rotation: Rotation) -> Iterator[Any]:
    """Run a loaded Hugging Face causal language model with what a method returned, and yield it.

    On exit the model is bit for bit what it was, also after an error. The rotation is that of one
    length: bands (methods that move positions) reach no further, prompt and new tokens together.
    Raises UserError, naming the model, where its rotary embedding cannot be replaced as a whole,
    and for a rotation that is the library's own stateful type.
    """
    if not isinstance(rotation, Rotation):
        raise UserError(
            f"patched takes what a method returns, not {type(rotation).__name__}: "
            "methods.yarn(rope_of(model.config), length, factor=4)."
        )
    if rotation.stateful:
        raise UserError(
            "this rotation is transformers' own stateful type: load the model with it instead."
        )
    with patch.patched(model, rotation):
        yield model
