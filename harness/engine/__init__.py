"""Answer questions: the loss of every target of a sequence and the argmax at each, or a text.

The model's own code computes everything; only the order differs. Shared beginnings are computed
once, layers and head process rows in chunks, and neither a ``length x vocabulary`` nor a
``length x length`` tensor exists. On a CPU no saving changes a bit of a float32 result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from harness.engine.compare import compared, hidden_states
from harness.engine.decode import Text, together, write
from harness.engine.forward import Forward, shareable
from harness.engine.gather import ResultCollector
from harness.engine.generate import Decode, Generation, alone
from harness.engine.packed_attention import PLAIN, NotShareableError
from harness.engine.prefix_tree import build_tree
from harness.engine.sdpa import Kernel, blocked
from harness.engine.sizes import Sizes
from harness.engine.trunk import layers_of, trunk_name
from tasks.types import Generate, ModelRequest, ModelResponse

__all__ = [
    "DEFAULT", "PLAIN", "Answered", "Decode", "Kernel", "NotShareableError", "OutOfMemory", "Sizes",
    "alone", "answers", "blocked", "compared", "hidden_states", "layers_of", "no_tokenizer",
    "out_of_memory", "shareable", "trunk_name",
]  # fmt: skip

T = TypeVar("T")
DEFAULT = Sizes()
# What says so in other errors: of a CPU; of CUDA outside PyTorch's allocator, and MPS; of cuBLAS.
LACKING = ("DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")
Indexed = Sequence[tuple[int, ModelRequest]]


@dataclass(frozen=True)
class OutOfMemory:
    """A question that has no answer because memory was too little, alone and in small chunks."""


Answered = Iterator[
    tuple[int, ModelResponse | OutOfMemory]
]  # by the question's index in what was asked


def no_tokenizer(_: Sequence[int]) -> str:
    """Stand for a tokenizer where no text is asked for."""
    raise ValueError("a text needs the tokenizer's decode")


@torch.inference_mode()
def answers(
    model: Any,
    questions: Sequence[ModelRequest],
    sizes: Sizes = DEFAULT,
    decode: Decode = no_tokenizer,
) -> Answered:
    """Yield (index, answer) of every question, each once, in an order of the engine's choice.

    Losses equal ``model(input_ids, labels=…)`` to rounding: logits in float32, one target per
    position, nothing padded or masked. Texts are greedy, and a text's every token is the argmax of
    a whole forward of what precedes it. ``decode`` is the tokenizer's. A question that runs out of
    memory is computed again, alone and in small chunks, before it is OutOfMemory; other errors are
    raised. The model is in eval mode and on one device. Where a model's layers do more than causal
    attention (sliding windows, soft-capping, convolutions), every different sequence is one plain
    forward, and a text is written by the model's own cache.
    """
    asked = list(enumerate(questions))
    sharing = bool(asked) and shareable(model)
    for group in [asked] if sharing else _equal(asked):
        answered = set()
        solve = _solved if sharing else _plain
        for index, answer in solve(model, group, sizes, decode):
            answered.add(index)
            yield index, answer
        for index, question in group:
            if index not in answered:
                again = solve(model, [(index, question)], sizes.least, decode)
                yield next(again, (index, OutOfMemory()))


def _equal(asked: Indexed) -> list[Indexed]:
    """Group questions of equal tokens."""
    groups: dict[Sequence[int], list[tuple[int, ModelRequest]]] = {}
    for index, question in asked:
        groups.setdefault(question.tokens, []).append((index, question))
    return list(groups.values())


def _plain(
    model: Any, asked: Indexed, sizes: Sizes, decode: Decode
) -> Iterator[tuple[int, ModelResponse]]:
    """Yield the answers to questions of equal tokens: one forward of losses, and texts alone."""
    scored = [(index, question) for index, question in asked if not isinstance(question, Generate)]
    if scored:
        yield from _solved(model, scored, sizes, decode, sharing=False)
    for index, question in asked:
        if isinstance(question, Generate):
            text = _within_memory(partial(alone, model, question, decode))
            if text is not None:
                yield index, text


def _solved(
    model: Any, asked: Indexed, sizes: Sizes, decode: Decode, *, sharing: bool = True
) -> Iterator[tuple[int, ModelResponse]]:
    """Yield the answers pack by pack, without those that ran out of memory."""
    questions = [question for _, question in asked]
    tree = build_tree([question.tokens for question in questions])
    gather = ResultCollector(tree, questions)
    paths = [
        path
        for path, question in zip(tree.paths, questions, strict=True)
        if isinstance(question, Generate)
    ]
    forward = Forward(model, tree, sizes, sharing, paths)
    lost: set[int] = set()
    for number, pack in enumerate(forward.packs):
        results = None
        if lost.isdisjoint(above for node in pack for above in tree.nodes[node].above):
            results = _within_memory(partial(forward.measure, number, gather))
        if results is None:
            lost.update(pack)
            continue
        texts: dict[int, Text] = {}
        for node, nll, argmax in results:
            for place in gather.enter(node, nll, argmax):
                answer, question = gather.answer(place), questions[place]
                if isinstance(question, Generate):
                    path = [(index, tree.nodes[index]) for index in tree.paths[place]]
                    texts[place] = Text(Generation.of(model, question, decode), path)
                else:
                    yield asked[place][0], answer
        yield from ((asked[place][0], answer) for place, answer in _written(forward, texts))
        forward.free(2 * number + 1)


def _written(forward: Forward, texts: dict[int, Text]) -> Iterator[tuple[int, ModelResponse]]:
    """Yield the texts that begin after a pack, without those that ran out of memory."""
    model, sizes = forward.model, forward.sizes
    for group in together(model, texts, sizes.pack):
        chosen = [texts[place] for place in group]
        found = _within_memory(partial(write, model, chosen, forward.held, sizes))
        yield from zip(group, found or (), strict=found is not None)
        for text in chosen:
            text.keys.clear()


def _within_memory(compute: Callable[[], T]) -> T | None:
    """Return what is computed; None where memory is too small."""
    try:
        return compute()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return None


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means a lack of memory, on a GPU or a CPU."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or any(words in str(error) for words in LACKING)
