"""Answer questions about token sequences: the loss of every target, and the argmax at each.

The model's own code computes everything; only the order differs. The trunk runs once per
question, the head in row chunks, so that no ``length x vocabulary`` tensor exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from harness.errors import UserError
from tasks._types import Answer, Question

HEAD_BYTES = 64 * 2**20  # float32 logits alive at once
LEAST_ROWS = 16  # a chunk of fewer rows is slow, and has other bits on some processors


def trunk_name(model: nn.Module) -> str:
    """Return the name of the child that turns tokens into hidden states.

    Neither ``base_model`` nor ``get_decoder()`` is reliable over families; the one child that is
    itself a PreTrainedModel is. Raises UserError where there is not exactly one.
    """
    found = [name for name, child in model.named_children() if isinstance(child, PreTrainedModel)]
    if len(found) != 1:
        message = f"{type(model).__name__} is no causal language model of one trunk and one head."
        raise UserError(message)
    return found[0]


class _Stub(nn.Module):
    """Stands in for the trunk and returns hidden states computed before."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None

    def forward(self, *_: Any, **__: Any) -> MoeModelOutputWithPast:
        # The one output that has what any head reads, mixtures of experts included.
        return MoeModelOutputWithPast(last_hidden_state=self.hidden)


@contextmanager
def _head_only(model: nn.Module) -> Iterator[_Stub]:
    """Take the trunk out, so that the model's forward is its own head and nothing else.

    A bare ``lm_head`` is wrong for a dozen families, which scale or cap their logits.
    """
    name = trunk_name(model)
    trunk, stub = getattr(model, name), _Stub()
    setattr(model, name, stub)
    try:
        yield stub
    finally:
        setattr(model, name, trunk)


@torch.inference_mode()
def answers(
    model: Any, questions: Sequence[Question], *, chunk_bytes: int | None = None
) -> Iterator[tuple[int, Answer | None]]:
    """Yield (index, answer) of every question, each once, in an order of the engine's choice.

    Equal to ``model(input_ids, labels=…)`` to rounding: logits in float32, one target per
    position, nothing padded or masked. None stands for a question that found too little memory;
    every other error is raised. ``chunk_bytes`` of logits are alive at once. The model is in eval
    mode and on one device.
    """
    for index, question in enumerate(questions):
        try:
            answer = _answer(model, question, chunk_bytes or HEAD_BYTES)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            answer = None
        yield index, answer


def out_of_memory(error: BaseException) -> bool:
    """Tell a lack of memory, on a GPU or a CPU, from every other failure."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "DefaultCPUAllocator" in str(error)


def _answer(model: Any, question: Question, chunk_bytes: int) -> Answer:
    """Answer one question by one forward pass of the trunk over its tokens."""
    tokens = torch.tensor([question.tokens], device=model.device)
    hidden = getattr(model, trunk_name(model))(input_ids=tokens, use_cache=False)[0]
    rows = max(LEAST_ROWS, chunk_bytes // (4 * model.config.get_text_config().vocab_size))
    first = question.start - 1
    return _read(model, hidden[:, first:], tokens[:, first:], rows)


def _read(model: Any, hidden: torch.Tensor, tokens: torch.Tensor, rows: int) -> Answer:
    """Return losses and argmaxes from the hidden states of the targets' predecessors.

    ``hidden`` is (1, n + 1, width) and ``tokens`` (1, n + 1): row i predicts token i + 1, and the
    last row what would follow.
    """
    nll: list[float] = []
    argmax: list[int] = []
    with _head_only(model) as stub:
        for first in range(0, tokens.shape[1], rows):
            chunk = slice(first, first + rows)
            stub.hidden = hidden[:, chunk]
            logits = model(input_ids=tokens[:, chunk], use_cache=False).logits[0].float()
            argmax += logits.argmax(-1).tolist()
            targets = tokens[0, first + 1 : first + rows + 1]
            kept = logits[: len(targets)]
            loss = nn.functional.cross_entropy(kept, targets, reduction="none")
            nll += loss.tolist()
    return Answer(tuple(nll), tuple(argmax))
