"""Answer requests as a server would, with the library's own rotary state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from harness.engine import Answered, Decode, OutOfMemory, alone, no_tokenizer, within_memory
from harness.errors import UserError
from harness.patching.config import rescaled
from harness.patching.frequencies import rotary_name
from scaling.types import StatefulRope
from tasks.types import Generate, LoglikelihoodResponse, ModelRequest, ModelResponse


@torch.inference_mode()
def stateful_answers(
    rotation: StatefulRope,
    model: Any,
    requests: Sequence[ModelRequest],
    decode: Decode = no_tokenizer,
) -> Answered:
    """Yield (index, response): the tokens before the first target at once, the rest one by one.

    Every request gets a new rotary module, built by the model's own class from its config with this
    rope type.
    """

    def answer(request: ModelRequest) -> ModelResponse:
        with stateful(model, rotation):
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
