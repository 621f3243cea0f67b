"""Answer questions about token sequences: the loss of every target, and the argmax at each.

The model's own code computes everything; only the order differs. Shared beginnings are computed
once, layers and head process rows in chunks, and neither a ``length x vocabulary`` nor a
``length x length`` tensor exists. On a CPU no saving changes a bit of a float32 result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.engine.forward import Forward, Results, shareable
from harness.engine.gather import Gather
from harness.engine.prefix_tree import build_tree
from harness.engine.sizes import Sizes
from harness.engine.trunk import trunk_name
from tasks._types import Answer, Question

__all__ = [
    "DEFAULT", "Answered", "OutOfMemory", "Sizes", "answers", "out_of_memory", "shareable",
    "trunk_name",
]  # fmt: skip

DEFAULT = Sizes()
Indexed = Sequence[tuple[int, Question]]


@dataclass(frozen=True)
class OutOfMemory:
    """A question that has no answer because memory was too little, alone and in small chunks."""


Answered = Iterator[tuple[int, Answer | OutOfMemory]]  # by the question's index in what was asked


@torch.inference_mode()
def answers(model: Any, questions: Sequence[Question], sizes: Sizes = DEFAULT) -> Answered:
    """Yield (index, answer) of every question, each once, in an order of the engine's choice.

    Equal to ``model(input_ids, labels=…)`` to rounding: logits in float32, one target per
    position, nothing padded or masked. A question that runs out of memory is computed again, alone
    and in small chunks, before it is OutOfMemory; other errors are raised. The model is in eval
    mode and on one device. Where a model's layers do more than causal attention (sliding windows,
    soft-capping, convolutions), every different sequence is one plain forward.
    """
    asked = list(enumerate(questions))
    sharing = bool(asked) and shareable(model)
    for group in [asked] if sharing else _equal(asked):
        answered = set()
        for index, answer in _solved(model, group, sizes, sharing):
            answered.add(index)
            yield index, answer
        for index, question in group:
            if index not in answered:
                again = _solved(model, [(index, question)], sizes.least, sharing)
                yield next(again, (index, OutOfMemory()))


def _equal(asked: Indexed) -> list[Indexed]:
    """Group questions of equal tokens."""
    groups: dict[Sequence[int], list[tuple[int, Question]]] = {}
    for index, question in asked:
        groups.setdefault(question.tokens, []).append((index, question))
    return list(groups.values())


def _solved(
    model: Any, asked: Indexed, sizes: Sizes, sharing: bool
) -> Iterator[tuple[int, Answer]]:
    """Yield the answers pack by pack, without those that ran out of memory."""
    tree = build_tree([question.tokens for _, question in asked])
    gather = Gather(tree, [question for _, question in asked])
    forward = Forward(model, tree, sizes, sharing)
    lost: set[int] = set()
    for number, pack in enumerate(forward.packs):
        results = None
        if lost.isdisjoint(above for node in pack for above in tree.nodes[node].above):
            results = _within_memory(forward, number, gather)
        if results is None:
            lost.update(pack)
            continue
        for node, nll, argmax in results:
            for place in gather.enter(node, nll, argmax):
                yield asked[place][0], gather.answer(place)


def _within_memory(forward: Forward, number: int, gather: Gather) -> Results | None:
    """Measure a pack; return None where memory is too small."""
    try:
        return forward.measure(number, gather)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return None


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means a lack of memory, on a GPU or a CPU."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "DefaultCPUAllocator" in str(error)
