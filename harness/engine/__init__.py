"""Answer questions about token sequences: the loss of every target, and the argmax at each.

The model's own code computes everything; only the order differs. What sequences share is computed
once, layers and head take rows in chunks, and neither a ``length x vocabulary`` nor a
``length x length`` tensor exists. On a CPU no saving changes a bit of a float32 result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from harness.engine.forward import Forward, Results, shareable
from harness.engine.gather import Gather
from harness.engine.prefix_tree import build_tree
from harness.engine.sizes import Sizes
from harness.engine.trunk import trunk_name
from tasks._types import Answer, Question

__all__ = ["DEFAULT", "Sizes", "answers", "out_of_memory", "shareable", "trunk_name"]

DEFAULT = Sizes()
Indexed = Sequence[tuple[int, Question]]


@torch.inference_mode()
def answers(
    model: Any, questions: Sequence[Question], sizes: Sizes = DEFAULT
) -> Iterator[tuple[int, Answer | None]]:
    """Yield (index, answer) of every question, each once, in an order of the engine's choice.

    Equal to ``model(input_ids, labels=…)`` to rounding: logits in float32, one target per
    position, nothing padded or masked. None stands for a question that found too little memory,
    alone and in small chunks; every other error is raised. The model is in eval mode and on one
    device. Where a model's layers do more than causal attention (sliding windows, soft-capping,
    convolutions), every different sequence is one plain forward.
    """
    asked = list(enumerate(questions))
    sharing = bool(asked) and shareable(model)
    for group in [asked] if sharing else _equal(asked):
        failed: list[tuple[int, Question]] = []
        yield from _solved(model, group, sizes, sharing, failed)
        for one in failed:
            lost: list[tuple[int, Question]] = []
            yield from _solved(model, [one], sizes.least, sharing, lost)
            yield from ((index, None) for index, _ in lost)


def _equal(asked: Indexed) -> list[Indexed]:
    """Put questions of equal tokens together."""
    groups: dict[Sequence[int], list[tuple[int, Question]]] = {}
    for index, question in asked:
        groups.setdefault(question.tokens, []).append((index, question))
    return list(groups.values())


def _solved(
    model: Any, asked: Indexed, sizes: Sizes, sharing: bool, failed: list[tuple[int, Question]]
) -> Iterator[tuple[int, Answer]]:
    """Yield the answers pack by pack; put those that found too little memory into ``failed``."""
    tree = build_tree([question.tokens for _, question in asked])
    gather = Gather(tree, [question for _, question in asked])
    forward = Forward(model, tree, sizes, sharing)
    done: set[int] = set()
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
                done.add(place)
                yield asked[place][0], gather.answer(place)
    failed += [one for place, one in enumerate(asked) if place not in done]


def _within_memory(forward: Forward, number: int, gather: Gather) -> Results | None:
    """Measure a pack; None where memory is too little."""
    try:
        return forward.measure(number, gather)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return None


def out_of_memory(error: BaseException) -> bool:
    """Tell a lack of memory, on a GPU or a CPU, from every other failure."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "DefaultCPUAllocator" in str(error)
