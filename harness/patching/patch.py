"""Run a model with any rotation: frequencies, bands, or the library's own served state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from ropewalk.harness.engine import (
    DEFAULT,
    Answered,
    Decode,
    OutOfMemory,
    Sizes,
    alone,
    answers,
    hidden_states,
    language_model,
    no_tokenizer,
    within_memory,
)
from ropewalk.harness.engine.loss import divergences
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.bands import banded, unrotated
from ropewalk.harness.patching.config import TUNING, is_rotary, rescaled, rope_of
from ropewalk.harness.patching.frequencies import (
    layered,
    once,
    probe,
    rotary_name,
    with_frequencies,
)
from ropewalk.scaling import native
from ropewalk.scaling.dynamic_ntk import StatefulRope
from ropewalk.scaling.types import Bands, Frequencies, PerLayerFrequencies, Rotation
from ropewalk.tasks.types import (
    DivergenceResponse,
    Generate,
    LoglikelihoodResponse,
    ModelRequest,
    ModelResponse,
)


@contextmanager
def patched(model: Any, rotation: Rotation) -> Iterator[None]:
    """Run a loaded causal language model with a rotation; restore it bit for bit on exit.

    A stateful type begins anew on entry. Raises UserError, naming the model, where the model cannot
    be patched.
    """
    if not is_rotary(model.config):
        with unrotated(model, rotation) if isinstance(rotation, Bands) else nullcontext():
            yield
        return
    inside: AbstractContextManager[None]
    match rotation:
        case StatefulRope():
            inside = stateful(model, rotation)
        case PerLayerFrequencies():
            inside = layered(model, rotation)
        case Bands():
            inside = banded(model, rotation)
        case Frequencies():
            inside = with_frequencies(model, rotation)
    with scaled_outside(model, rotation.last), inside:
        yield


@contextmanager
def scaled_outside(model: Any, wanted: Frequencies) -> Iterator[None]:
    """Let a model scale its logits and its queries by position as these frequencies say.

    What the checkpoint ships is replaced, and is back on exit. Raises UserError, naming the model,
    for logits that cannot be scaled.
    """
    rope, text = rope_of(model.config), model.config.get_text_config()
    shipped, temperature = native.logit_scale(rope), native.temperature(rope)
    kind = type(model).__name__
    if wanted.temperature not in (None, temperature):
        raise UserError(f"{kind} has no code that scales queries by {wanted.temperature}.")
    changes = wanted.logit_scale != shipped
    scales = {
        module: module.scaling
        for module in (language_model(model).modules() if changes else ())
        if hasattr(module, "layer_idx") and isinstance(getattr(module, "scaling", None), float)
    }
    parameters = text.rope_parameters
    unscaled = temperature is not None and wanted.temperature is None
    tuned = {
        module: getattr(module, TUNING)
        for module in (language_model(model).modules() if unscaled else ())
        if hasattr(module, TUNING)
    }

    def scale(factor: float) -> None:
        for module, own in scales.items():
            module.scaling = own / shipped * factor

    def verify() -> None:
        before = probe(model)
        scale(2 * shipped)
        if torch.equal(before, probe(model)):
            raise UserError(f"{kind} does not let its logits be scaled; not supported.")

    try:
        if changes:
            once(model, "logits", verify)
            scale(wanted.logit_scale)
        if native.BETA in rope.shipped and unscaled:
            text.rope_parameters = {**parameters, native.BETA: 0.0}
        for module in tuned:
            setattr(module, TUNING, False)
        yield
    finally:
        text.rope_parameters = parameters
        for module, own in tuned.items():
            setattr(module, TUNING, own)
        for module, own in scales.items():
            module.scaling = own


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

    def divergence(question: ModelRequest, sizes: Sizes) -> ModelResponse:
        own = hidden_states(model, question, sizes)
        with patched(model, rotation):
            other = hidden_states(model, question, sizes)
        return DivergenceResponse(tuple(divergences(model, own, other, sizes)))

    def answer(questions: Sequence[ModelRequest]) -> Answered:
        for index, question in enumerate(questions):
            lacks: list[OutOfMemory] = []
            response: ModelResponse | None = None
            for size in (sizes, sizes.least):
                response = response or within_memory(partial(divergence, question, size), lacks)
            yield index, response or lacks[-1]

    yield answer


@torch.inference_mode()
def stateful_answers(
    rotation: StatefulRope, model: Any, requests: Sequence[ModelRequest], decode: Decode
) -> Answered:
    """Yield (index, response): the tokens before the first target at once, the rest one by one.

    Every request gets a new rotary module, built by the model's own class from its config with this
    rope type.
    """

    def answer(request: ModelRequest) -> ModelResponse:
        with patched(model, rotation):
            if isinstance(request, Generate):
                return alone(model, request, decode)
            return _losses(model, request)

    for index, request in enumerate(requests):
        lacks: list[OutOfMemory] = []
        response = within_memory(partial(answer, request), lacks)
        yield index, response or lacks[-1]


@contextmanager
def stateful(model: Any, rotation: StatefulRope) -> Iterator[None]:
    """Replace the model's rotary module by a new one of the stateful type."""
    name = rotary_name(model)
    own = model.get_submodule(name)
    config = rescaled(model.config, rotation.rope_parameters).get_text_config()
    config.max_position_embeddings = rotation.trained_length  # the window of the type
    try:
        new = type(own)(config=config).to(model.device)
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"{type(model).__name__} cannot be built with {dict(rotation.rope_parameters)}."
        ) from error
    try:
        model.set_submodule(name, new)
        yield
    finally:
        model.set_submodule(name, own)


def _losses(model: Any, request: ModelRequest) -> ModelResponse:
    tokens = torch.tensor([list(request.tokens)], device=model.device)
    from transformers import DynamicCache  # with the model's code

    cache, read = DynamicCache(config=model.config), 0
    nll: list[float] = []
    argmax: list[int] = []
    for stop in range(request.start, tokens.shape[1] + 1):
        out = model(
            input_ids=tokens[:, read:stop], past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        logits, read = out.logits[0, -1:].float(), stop
        argmax.append(int(logits.argmax()))
        if stop < tokens.shape[1]:
            nll.append(float(nn.functional.cross_entropy(logits, tokens[0, stop : stop + 1])))
    return LoglikelihoodResponse(tuple(nll), tuple(argmax))
