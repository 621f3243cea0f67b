"""The cost of a plan, from its config alone: tokens, operations, and the sizes that fit memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from ropewalk.harness.engine import DEFAULT, Sizes, memory
from ropewalk.harness.engine.prefix_tree import PrefixTree, build_tree
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import DTYPES, Checkpoint
from ropewalk.harness.patching.banded_attention import kept_of
from ropewalk.harness.sweep.plan import Batch, Item, Key, Plan
from ropewalk.scaling.types import Bands
from ropewalk.tasks._tokens import kept
from ropewalk.tasks.types import Divergence, Generate

MOST_LENGTHS = 32  # whose trees are kept
# Beside the operations of a prompt's tokens: those of a forward as such, and of a pair in attention
# as times what they are, because it is slower.
FORWARD, PAIRS = 3e7, 1.5


@dataclass(frozen=True)
class Cost:
    """Cost of the samples that are left: tokens to forward, and bytes at the peak, here."""

    samples: int
    tokens: int
    parameters: int
    bytes: int


def estimate(plan: Plan, done: set[Key]) -> Cost:
    """Estimate a plan: what is shared is forwarded once."""
    work = plan.work(done)
    return Cost(
        samples=sum(not question.too_long for _, question in plan.left(done)),
        tokens=sum(cost.tokens for batch in work for cost in costs(plan.checkpoint, batch)),
        parameters=plan.checkpoint.parameter_count,
        bytes=0
        if plan.checkpoint.served
        else max(_peak(plan, work)(fitted(plan, work)), _loading(plan)),
    )


class RequestCost(NamedTuple):
    """What a request adds to those before it: tokens in and out, and operations of those in."""

    tokens: int
    operations: float


def costs(checkpoint: Checkpoint, batch: Batch) -> Iterator[RequestCost]:
    """Yield the cost of every request of a batch; what requests share is counted once."""
    config = checkpoint.config.get_text_config()
    heads, width = getattr(config, "num_attention_heads", None) or 0, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or width // max(heads, 1)
    table = config.vocab_size * width
    tables = table * (1 if getattr(config, "tie_word_embeddings", False) else 2)
    per_token = 2 * max(checkpoint.parameter_count - tables, 1)
    per_pair, per_target = 4 * heads * head_dim * config.num_hidden_layers, 2 * table
    tree, seen = shared_tree(checkpoint, batch), set[object]()
    for place, (_, request) in enumerate(batch.items):
        if tree:
            path = [node for node in tree.paths[place] if node not in seen]
            spans = [(tree.nodes[node].first, tree.nodes[node].end) for node in path]
            seen.update(path)
        else:
            spans = [(0, len(request.tokens))] if request.tokens not in seen else []
            seen.add(request.tokens)
        targets, generated = request.length - request.start + 1, 0
        if isinstance(request, Generate):
            targets, generated = 0, targets - 1
        elif isinstance(request, Divergence):  # a second forward, of the model as it is
            spans, targets = [*spans, (0, request.length)], 2 * targets
        tokens = sum(end - first for first, end in spans)
        pairs = sum((end - first) * (first + end) / 2 for first, end in spans)
        operations = FORWARD * len(spans) + per_token * tokens + PAIRS * per_pair * pairs
        yield RequestCost(tokens + generated, operations + per_target * targets)


def shared_tree(checkpoint: Checkpoint, batch: Batch) -> PrefixTree | None:
    """Return what the requests of a batch share; None where each is a forward of its own."""
    capped = getattr(checkpoint.config.get_text_config(), "attn_logit_softcapping", None)
    if batch.rotation.stateful or checkpoint.sliding_window or capped:
        return None
    return _tree_of(tuple(kept(request.tokens) for _, request in batch.items))


_tree_of = lru_cache(maxsize=MOST_LENGTHS)(build_tree)  # once for all methods


def fitted(plan: Plan, work: Sequence[Batch]) -> Sizes:
    """Return the fastest sizes that keep to ``max_memory``.

    Raises UserError where even the smallest do not, with how much they need.
    """
    limit = plan.spec.max_memory
    if limit is None or not work:
        return DEFAULT
    peak, loading = _peak(plan, work), _loading(plan)
    needs = {sizes: max(peak(sizes), loading) for sizes in DEFAULT.smaller}
    for sizes, needed in needs.items():
        if needed <= limit:
            return sizes
    raise UserError(
        f"--max-memory {limit.human_readable()} is too little: the weights and the longest question"
        f" need about {min(needs.values()) / 2**20:,.0f} MiB; give shorter lengths or more memory."
    )


def needed(plan: Plan, item: Item) -> int:
    """Return the bytes that one question needs alone, in the smallest chunks, with the weights."""
    rotation = item.cell.superset or item.cell.rotation
    assert rotation is not None  # it was measured
    return _peak(plan, [Batch(rotation, (item,))])(DEFAULT.least)


def _loading(plan: Plan) -> int:
    """Return the bytes at the peak of loading: of another dtype, the files beside the weights.

    On a CPU weights of the requested dtype are read in place; others are converted one by one, and
    the mapped files count until all are.
    """
    checkpoint = plan.checkpoint
    shipped = DTYPES.get(str(checkpoint.config.dtype or "float32").removeprefix("torch."))
    wanted = DTYPES[checkpoint.dtype]
    if checkpoint.loaded is not None or shipped in (None, wanted) or checkpoint.device != "cpu":
        return 0
    if getattr(checkpoint.config, "quantization_config", None) is not None:
        return 2 * checkpoint.weight_bytes  # its files hold what memory does
    return checkpoint.parameter_count * (wanted.itemsize + shipped.itemsize)


def _peak(plan: Plan, work: Sequence[Batch]) -> Callable[[Sizes], int]:
    """Return a function from sizes to the bytes at the peak of measuring, weights included."""
    checkpoint, device = plan.checkpoint, torch.device(plan.checkpoint.device)
    # Where only workers have GPUs their number is not known, which device_count gives as 0.
    gpus = torch.cuda.device_count() if device.type == "cuda" and checkpoint.device_map else 1
    size = DTYPES[checkpoint.dtype].itemsize
    shape = memory.Shape.of(checkpoint.config.get_text_config(), size).on(device, gpus=gpus)
    loads = [_load(checkpoint, shape, batch) for batch in work]
    return lambda sizes: checkpoint.weight_bytes + max((load(sizes) for load in loads), default=0)


def _load(checkpoint: Checkpoint, shape: memory.Shape, batch: Batch) -> Callable[[Sizes], int]:
    """Return the same of one batch, without weights: what it shares, or its longest request."""
    questions, rotation = [question for _, question in batch.items], batch.rotation
    tree = shared_tree(checkpoint, batch)
    longest = max(question.length for question in questions)
    paths = tree.paths if tree else [()] * len(questions)
    texts = tuple(
        (path, question.length)
        for path, question in zip(paths, questions, strict=True)
        if isinstance(question, Generate)
    )
    targets = sum(question.length - question.start + 1 for question in questions)
    moved = kept_of(rotation) if isinstance(rotation, Bands) else memory.Moved()
    if tree is not None:
        return lambda sizes: memory.shared(shape, tree, targets, sizes, texts, moved)
    beside = memory.tables(shape, longest, moved) + memory.rotated(shape, longest, moved)
    # Bands have no mask, and scores of a few rows at a time.
    if not moved.tables or any(isinstance(question, Divergence) for question in questions):
        beside = max(beside, _attention_bytes(checkpoint, longest, shape.itemsize))
    cache = memory.written(shape, sorted(texts, key=lambda text: text[1])[-1:], DEFAULT)
    return lambda sizes: cache + memory.whole(shape, longest, beside, targets, sizes)


def _attention_bytes(checkpoint: Checkpoint, length: int, size: int) -> int:
    """Return what attention needs beyond the fused causal kernel, which needs nothing.

    Soft-capped scores are computed whole, in every head, with a float32 copy. Scores of the
    laboratory's encodings are computed for some queries at a time, in float32. A sliding window is
    a mask of one byte per pair.
    """
    sliding, config = checkpoint.sliding_window, checkpoint.config.get_text_config()
    if numbers := getattr(config, "score_numbers", None):
        return int(numbers(length, torch.device(checkpoint.device)) * memory.FLOAT32)
    if getattr(config, "attn_logit_softcapping", None):
        return int(config.num_attention_heads * length**2 * (size + memory.FLOAT32))
    return length**2 if sliding is not None and length > sliding else 0
