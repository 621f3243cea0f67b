"""The operations of a sweep, counted before anything is measured: what its progress runs over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple

from ropewalk.harness.engine.prefix_tree import PrefixTree, build_tree
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.sweep.plan import Batch
from ropewalk.tasks._tokens import kept
from ropewalk.tasks.types import Divergence, Generate

MOST_LENGTHS = 32  # whose trees are kept
# What is slower than the operations of a prompt's tokens weighs more: a forward as such, in
# operations; attention; and generated tokens, each of which reads all weights.
FORWARD, PAIRS, GENERATED = 3e7, 1.5, 40.0


class Cost(NamedTuple):
    """What a request adds to those before it: tokens and weighted operations.

    ``forwarded`` are tokens of input that no request before it has; ``generated`` those that follow
    a prompt one by one.
    """

    forwarded: int
    operations: float
    generated: int = 0
    decoding: float = 0.0  # operations

    @property
    def total(self) -> float:
        """All operations."""
        return self.operations + self.decoding


def shared_tree(checkpoint: Checkpoint, batch: Batch) -> PrefixTree | None:
    """Return what the requests of a batch share; None where each is a forward of its own."""
    capped = getattr(checkpoint.config.get_text_config(), "attn_logit_softcapping", None)
    if batch.rotation.stateful or checkpoint.sliding_window or capped:
        return None
    return _tree_of(tuple(kept(request.tokens) for _, request in batch.items))


_tree_of = lru_cache(maxsize=MOST_LENGTHS)(build_tree)  # once for all methods


def costs(checkpoint: Checkpoint, batch: Batch) -> Iterator[Cost]:
    """Yield the cost of every request of a batch; what requests share is counted once."""
    per_token, per_pair, per_target = _operations(checkpoint)
    tree, seen = shared_tree(checkpoint, batch), set[object]()
    for place, (_, request) in enumerate(batch.items):
        if tree:
            path = [node for node in tree.paths[place] if node not in seen]
            spans = [(tree.nodes[node].first, tree.nodes[node].end) for node in path]
            seen.update(path)
        else:
            spans = [(0, len(request.tokens))] if request.tokens not in seen else []
            seen.add(request.tokens)
        targets, decoding = request.length - request.start + 1, 0.0
        generated = targets - 1 if isinstance(request, Generate) else 0
        if isinstance(request, Generate):
            each = per_token + per_target + per_pair * request.length
            targets, decoding = 0, GENERATED * request.max_new_tokens * each
        elif isinstance(request, Divergence):  # a second forward, of the model as it is
            spans, targets = [*spans, (0, request.length)], 2 * targets
        tokens = sum(end - first for first, end in spans)
        pairs = sum((end - first) * (first + end) / 2 for first, end in spans)
        operations = FORWARD * len(spans) + per_token * tokens + PAIRS * per_pair * pairs
        yield Cost(tokens, operations + per_target * targets, generated, decoding)


def _operations(checkpoint: Checkpoint) -> tuple[float, float, float]:
    """Return the operations per token and per pair in all layers, and per target in the head."""
    config = checkpoint.config.get_text_config()
    heads, width = getattr(config, "num_attention_heads", None) or 0, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or width // max(heads, 1)
    table = config.vocab_size * width
    tables = table * (1 if getattr(config, "tie_word_embeddings", False) else 2)
    inside = max(checkpoint.parameter_count - tables, 1)
    return 2 * inside, 4 * heads * head_dim * config.num_hidden_layers, 2 * table


def duration(seconds: float) -> str:
    """Return a length of time as h:mm:ss."""
    return str(timedelta(seconds=round(seconds)))
