"""Answer requests: the loss of every target and the argmax there (``loss.py``), or a text.

The model's own code computes everything; only the order differs. Shared beginnings are computed
once, layers and head process rows in chunks, and neither a ``length x vocabulary`` nor a
``length x length`` tensor exists. On a CPU no saving changes a bit of a float32 result.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from ropewalk.harness.engine import sdpa
from ropewalk.harness.engine.forward import Forward, ResultCollector
from ropewalk.harness.engine.forward import hidden_states as hidden_states
from ropewalk.harness.engine.forward import shareable as shareable
from ropewalk.harness.engine.generation import Decode as Decode
from ropewalk.harness.engine.generation import Generation
from ropewalk.harness.engine.generation import alone as alone
from ropewalk.harness.engine.memory import Sizes as Sizes
from ropewalk.harness.engine.prefix_tree import build_tree
from ropewalk.harness.engine.structure import NotShareableError as NotShareableError
from ropewalk.harness.engine.structure import decoder_layers as decoder_layers
from ropewalk.harness.engine.structure import language_model as language_model
from ropewalk.harness.engine.texts import Writer
from ropewalk.tasks.types import Generate, Generated, ModelRequest, ModelResponse

T = TypeVar("T")
log = logging.getLogger("ropewalk")
DEFAULT = Sizes()
# What says so in other errors: of a CPU; of CUDA outside PyTorch's allocator, and MPS; of cuBLAS.
LACKING = ("DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")
Indexed = Sequence[tuple[int, ModelRequest]]


@dataclass(frozen=True)
class OutOfMemory:
    """A request has no response: memory was too small for it, even alone and in small chunks.

    ``place`` is whose memory it was: this machine's, or that of a GPU.
    """

    place: str = "this machine"


Answered = Iterator[tuple[int, ModelResponse | OutOfMemory]]  # by the index of the request


def no_tokenizer(_: Sequence[int]) -> str:
    """Stand for a tokenizer where no text is requested."""
    raise ValueError("a text needs the tokenizer's decode")


@torch.inference_mode()
def answers(
    model: Any,
    requests: Sequence[ModelRequest],
    sizes: Sizes = DEFAULT,
    decode: Decode = no_tokenizer,
) -> Answered:
    """Yield (index, response) of every request, each once, in an order of the engine's choice.

    Losses equal ``model(input_ids, labels=…)`` to rounding: logits in float32, one target per
    position, nothing padded or masked. Texts are greedy, and a text's every token is the argmax of
    a whole forward of what precedes it. ``decode`` is the tokenizer's. A request that runs out of
    memory is computed again, alone and in small chunks, before it is OutOfMemory; other errors are
    raised. The model is in eval mode and on one device. Where a model's layers do more than causal
    attention (sliding windows, soft-capping, convolutions), every different sequence is one plain
    forward, and a text is written by the model's own cache.
    """
    indexed = list(enumerate(requests))
    sharing = bool(indexed) and shareable(model)
    solve = _packed if sharing else _plain
    groups: dict[Sequence[int], list[tuple[int, ModelRequest]]] = {}
    for index, request in indexed:  # of equal tokens, where nothing else can be shared
        groups.setdefault(() if sharing else request.tokens, []).append((index, request))
    for group in groups.values():
        left, lacks = dict(group), list[OutOfMemory]()
        for index, response in solve(model, group, sizes, decode, lacks):
            del left[index]
            yield index, response
        if left:
            log.warning(
                "The memory of %s was too small for %d of %d requests; they are computed again,"
                " one by one and in small chunks.",
                lacks[-1].place,
                len(left),
                len(group),
            )
        for index, request in left.items():
            retried = solve(model, [(index, request)], sizes.least, decode, lacks)
            yield next(retried, (index, lacks[-1]))


def _plain(
    model: Any, indexed: Indexed, sizes: Sizes, decode: Decode, lacks: list[OutOfMemory]
) -> Iterator[tuple[int, ModelResponse]]:
    """Yield the responses to requests of equal tokens: one forward of losses, and texts alone."""
    scored = [item for item in indexed if not isinstance(item[1], Generate)]
    if scored:
        yield from _packed(model, scored, sizes, decode, lacks, sharing=False)
    for index, request in indexed:
        if isinstance(request, Generate):
            text = within_memory(partial(alone, model, request, decode), lacks)
            if text is not None:
                yield index, text


def _packed(
    model: Any,
    indexed: Indexed,
    sizes: Sizes,
    decode: Decode,
    lacks: list[OutOfMemory],
    *,
    sharing: bool = True,
) -> Iterator[tuple[int, ModelResponse]]:
    """Yield the responses pack by pack, without those that ran out of memory.

    ``lacks`` gets an entry each time that memory was too small.
    """
    requests = [request for _, request in indexed]
    tree = build_tree([request.tokens for request in requests])
    collector = ResultCollector(tree, requests)
    texts = {at: one for at, one in enumerate(requests) if isinstance(one, Generate)}
    forward = Forward(model, tree, sizes, sharing, [tree.paths[at] for at in texts])
    writer = Writer.of(model, [*texts.values()], sizes) if texts else None
    lost: set[int] = set()
    for number, pack in enumerate(forward.packs):
        complete = None
        if lost.isdisjoint(above for node in pack for above in tree.nodes[node].above):
            complete = within_memory(partial(forward.measure, number, collector), lacks)
        if complete is None:
            lost.update(pack)
            continue
        for place in complete:
            response, (index, request) = collector.response(place), indexed[place]
            if writer is None or not isinstance(request, Generate):
                yield index, response
                continue
            while not writer.takes(request):
                yield from _written(writer, lacks)
            path = [(node, tree.nodes[node]) for node in tree.paths[place]]
            begin = partial(Generation.of, model, request, decode, path)
            within_memory(partial(writer.add, index, begin, forward.held), lacks)
        # A GPU waits for more texts; on a CPU their keys would be in memory beside the next pack.
        while writer and writer.live and sdpa.blocked(model.device):
            yield from _written(writer, lacks)
        forward.free(2 * number + 1)
    while writer and writer.live:
        yield from _written(writer, lacks)


def _written(writer: Writer, lacks: list[OutOfMemory]) -> list[tuple[int, Generated]]:
    """Return the texts that are done next; none, and all are dropped, if memory is too small."""
    done = within_memory(writer.run, lacks)
    if done is None:
        writer.live.clear()
    return done or []


def within_memory(compute: Callable[[], T], lacks: list[OutOfMemory]) -> T | None:
    """Return what is computed; None, and an entry in ``lacks``, where memory is too small."""
    try:
        return compute()
    except (RuntimeError, MemoryError) as error:
        lack = out_of_memory(error)
        if lack is None:
            raise
        lacks.append(lack)
        return None


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Return whose memory an error says was too small; None for any other error."""
    text = str(error)
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if not known and not any(words in text for words in LACKING):
        return None
    if number := re.search(r"GPU \d+", text):
        return OutOfMemory(number[0])
    own = isinstance(error, MemoryError) or LACKING[0] in text
    return OutOfMemory() if own else OutOfMemory("the GPU")
