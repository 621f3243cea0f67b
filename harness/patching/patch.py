"""Run a model with any rotation: frequencies, bands, or the library's own served state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from harness.engine import (
    Answered,
    Decode,
    OutOfMemory,
    Sizes,
    answers,
    compared,
    hidden_states,
    no_tokenizer,
    out_of_memory,
)
from harness.errors import UserError
from harness.patching.config import is_rotary
from harness.patching.frequencies import patched
from harness.patching.layered import layered
from harness.patching.positions import banded
from harness.patching.stateful import served_answers
from scaling.types import Bands, Frequencies, PerLayerFrequencies, Rotation, StatefulRope
from tasks.types import ModelRequest, ModelResponse


def scaled(model: Any, rotation: Rotation) -> AbstractContextManager[None]:
    """Run a loaded causal language model with a rotation; restore it bit for bit on exit.

    Raises UserError, naming the model, where this is not possible.
    """
    if isinstance(rotation, Frequencies) and not (
        len(rotation.inv_freq) or is_rotary(model.config)
    ):
        return nullcontext()  # it has no rotary embedding, and is run as it is
    if isinstance(rotation, StatefulRope):
        return nullcontext()  # every question has a new state
    if isinstance(rotation, PerLayerFrequencies):
        return layered(model, rotation)
    return banded(model, rotation) if isinstance(rotation, Bands) else patched(model, rotation)


@contextmanager
def answering(
    model: Any, rotation: Rotation, sizes: Sizes, decode: Decode = no_tokenizer
) -> Iterator[Callable[[Sequence[ModelRequest]], Answered]]:
    """Yield a function that answers questions by a model with a rotation, ``sizes`` at a time.

    ``decode`` is the tokenizer's, for questions that ask for a text.
    The model is restored bit for bit on exit. Raises UserError as ``scaled`` does.
    """
    with scaled(model, rotation):
        if isinstance(rotation, StatefulRope):
            yield partial(served_answers, rotation, model, decode=decode)
        else:
            yield partial(answers, model, sizes=sizes, decode=decode)


@contextmanager
def comparing(
    model: Any, rotation: Rotation, sizes: Sizes
) -> Iterator[Callable[[Sequence[ModelRequest]], Answered]]:
    """Yield a function that answers questions for the divergence from the model as it is.

    Each question is read twice, without the rotation and with it; the model is restored after each.
    Raises UserError as ``scaled`` does, and for a rotation that follows the tokens it is served.
    """
    if isinstance(rotation, StatefulRope):
        raise UserError(
            "the divergence from the unpatched model is not measured for what is served."
        )
    yield partial(_compared, model, rotation, sizes)


def _compared(
    model: Any, rotation: Rotation, sizes: Sizes, questions: Sequence[ModelRequest]
) -> Answered:
    for index, question in enumerate(questions):
        answer: ModelResponse | OutOfMemory = OutOfMemory()
        for size in (sizes, sizes.least):
            try:
                answer = _divergence(model, rotation, size, question)
                break
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
        yield index, answer


def _divergence(
    model: Any, rotation: Rotation, sizes: Sizes, question: ModelRequest
) -> ModelResponse:
    own = hidden_states(model, question, sizes)
    with scaled(model, rotation):
        other = hidden_states(model, question, sizes)
    return compared(model, own, other, sizes)
