"""Run a loaded model under a rotation, for any use of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.errors import UserError
from harness.patching import patch
from scaling import Rotation


@contextmanager
def patched(model: Any, rotation: Rotation) -> Iterator[Any]:
    """Run a loaded Hugging Face causal language model with what a method returned, and yield it.

    On exit the model is bit for bit what it was, also after an error. The rotation is that of one
    length: bands (methods that move positions) reach no further, prompt and new tokens together.
    Raises UserError, naming the model, where its rotary embedding cannot be replaced as a whole,
    and for a rotation that is the library's own stateful type.
    """
    if rotation.stateful:
        raise UserError(
            "this rotation is transformers' own stateful type: load the model with it instead."
        )
    with patch.patched(model, rotation):
        yield model
