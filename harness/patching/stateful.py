"""Answer questions as a server would, with the library's own rotary state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from harness.engine import Answered, Decode, OutOfMemory, alone, no_tokenizer, out_of_memory
from harness.errors import UserError
from harness.patching.config import rescaled
from harness.patching.frequencies import rotary_name
from scaling.types import StatefulRope
from tasks.types import Generate, LoglikelihoodResponse, ModelRequest, ModelResponse


@torch.inference_mode()
def stateful_answers(
    served: StatefulRope,
    model: Any,
    questions: Sequence[ModelRequest],
    decode: Decode = no_tokenizer,
) -> Answered:
    """Yield (index, answer): the tokens before the first target at once, the rest one by one.

    Every question gets a new rotary module, built by the model's own class from its config with
    this rope type.
    """
    for index, question in enumerate(questions):
        try:
            with stateful(model, served):
                answer: ModelResponse | OutOfMemory = (
                    alone(model, question, decode)
                    if isinstance(question, Generate)
                    else _answer(model, question)
                )
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            answer = OutOfMemory()
        yield index, answer


@contextmanager
def stateful(model: Any, served: StatefulRope) -> Iterator[None]:
    """Replace the model's rotary module by a new one of the served type."""
    name = rotary_name(model)
    own = model.get_submodule(name)
    try:
        model.set_submodule(name, _rotary(type(own), model, served))
        yield
    finally:
        model.set_submodule(name, own)


def _rotary(kind: type[nn.Module], model: Any, served: StatefulRope) -> nn.Module:
    config = rescaled(model.config, served.rope_parameters).get_text_config()
    config.max_position_embeddings = served.trained_length  # the window of the type
    try:
        return kind(config=config).to(model.device)
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"{type(model).__name__} cannot be built with {dict(served.rope_parameters)}."
        ) from error


def _answer(model: Any, question: ModelRequest) -> ModelResponse:
    tokens = torch.tensor([list(question.tokens)], device=model.device)
    cache, read = DynamicCache(config=model.config), 0
    nll: list[float] = []
    argmax: list[int] = []
    for stop in range(question.start, tokens.shape[1] + 1):
        logits = model(
            input_ids=tokens[:, read:stop], past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits[0, -1:].float()  # fmt: skip
        read = stop
        argmax.append(int(logits.argmax()))
        if stop < tokens.shape[1]:
            nll.append(float(nn.functional.cross_entropy(logits, tokens[0, stop : stop + 1])))
    return LoglikelihoodResponse(tuple(nll), tuple(argmax))
