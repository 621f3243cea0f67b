"""Run a model with any rotation: frequencies, bands, or the library's own served state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from harness.engine import (
    DEFAULT,
    Answered,
    Decode,
    OutOfMemory,
    Sizes,
    answers,
    compared,
    hidden_states,
    no_tokenizer,
    within_memory,
)
from harness.errors import UserError
from harness.patching.bands import banded
from harness.patching.config import is_rotary
from harness.patching.frequencies import layered, with_frequencies
from harness.patching.stateful import stateful, stateful_answers
from scaling.types import Bands, Frequencies, PerLayerFrequencies, Rotation, StatefulRope
from tasks.types import ModelRequest, ModelResponse


def patched(model: Any, rotation: Rotation) -> AbstractContextManager[None]:
    """Run a loaded causal language model with a rotation; restore it bit for bit on exit.

    A stateful type begins anew on entry. Raises UserError, naming the model, where the model cannot
    be patched.
    """
    match rotation:
        case StatefulRope():
            return stateful(model, rotation)
        case PerLayerFrequencies():
            return layered(model, rotation)
        case Bands():
            return banded(model, rotation)
        case Frequencies() if len(rotation.inv_freq) or is_rotary(model.config):
            return with_frequencies(model, rotation)
    return nullcontext()  # the model has no rotary embedding, and runs unchanged


@contextmanager
def answering(
    model: Any, rotation: Rotation, sizes: Sizes = DEFAULT, decode: Decode = no_tokenizer
) -> Iterator[Callable[[Sequence[ModelRequest]], Answered]]:
    """Yield a function that answers requests by a model with a rotation, ``sizes`` at a time.

    ``decode`` is the tokenizer's, for requests that generate text. The model is restored bit for
    bit on exit. Raises UserError as ``patched`` does.
    """
    if isinstance(rotation, StatefulRope):
        yield partial(stateful_answers, rotation, model, decode=decode)
        return
    with patched(model, rotation):
        yield partial(answers, model, sizes=sizes, decode=decode)


@contextmanager
def comparing(
    model: Any, rotation: Rotation, sizes: Sizes
) -> Iterator[Callable[[Sequence[ModelRequest]], Answered]]:
    """Yield a function that answers questions for the divergence from the unpatched model.

    Each question is read twice, without the rotation and with it; the model is restored after each.
    Raises UserError as ``patched`` does, and for a stateful rotation.
    """
    if rotation.stateful:
        raise UserError(
            "the divergence from the unpatched model is not measured for what is served."
        )
    yield partial(_compared, model, rotation, sizes)


def _compared(
    model: Any, rotation: Rotation, sizes: Sizes, questions: Sequence[ModelRequest]
) -> Answered:
    def divergence(question: ModelRequest, sizes: Sizes) -> ModelResponse:
        own = hidden_states(model, question, sizes)
        with patched(model, rotation):
            other = hidden_states(model, question, sizes)
        return compared(model, own, other, sizes)

    for index, question in enumerate(questions):
        lacks: list[OutOfMemory] = []
        answer: ModelResponse | None = None
        for size in (sizes, sizes.least):
            answer = answer or within_memory(partial(divergence, question, size), lacks)
        yield index, answer or lacks[-1]
