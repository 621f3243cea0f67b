"""What each part of a sweep costs, known before anything is measured: tokens and pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from harness.engine.prefix_tree import PrefixTree, build_tree
from harness.models.checkpoint import Checkpoint
from harness.sweep.cells import Batch
from harness.sweep.speeds import Cost
from scaling.types import StatefulRope
from tasks._tokens import Tokens, kept
from tasks._types import Request

MOST_LENGTHS = 32  # whose trees are kept


@dataclass(frozen=True)
class Step:
    """A run of tokens that is forwarded once, or of tokens that are written one by one.

    ``cost`` are its runs, and multiplications and additions: by tokens, by pairs, of what is
    written.
    """

    tokens: int
    cost: Cost


@dataclass(frozen=True)
class Steps:
    """The steps of a batch in their order, and the steps that each question needs."""

    steps: tuple[Step, ...]
    needs: tuple[tuple[int, ...], ...]


def shared_tree(checkpoint: Checkpoint, batch: Batch) -> PrefixTree | None:
    """Return what the questions of a batch share; None where each is a forward of its own."""
    capped = getattr(checkpoint.config.get_text_config(), "attn_logit_softcapping", None)
    if isinstance(batch.rotation, StatefulRope) or checkpoint.sliding_window or capped:
        return None
    return tree_of(tuple(kept(question.tokens) for _, question in batch.items))


@lru_cache(maxsize=MOST_LENGTHS)
def tree_of(asked: tuple[Tokens, ...]) -> PrefixTree:
    """Build the tree of questions that every method is asked, once for all methods."""
    return build_tree(asked)


def steps_of(checkpoint: Checkpoint, batch: Batch) -> Steps:
    """Return the steps of the questions of a batch."""
    per_token, per_pair, per_target = prices(checkpoint)
    questions = [question for _, question in batch.items]
    spans, paths = _spans(shared_tree(checkpoint, batch), questions)
    costs = [
        np.array([1, tokens * per_token, tokens * per_pair * (first + end) / 2, 0])
        for first, end in spans
        for tokens in [end - first]
    ]
    for place, question in enumerate(questions):
        if question.new:  # its tokens are a run of their own
            each = per_token + per_target + per_pair * question.length
            paths[place] += (len(spans),)
            spans.append((question.start, question.length))
            costs.append(np.array([0, 0, 0, question.new * each]))
            continue
        if question.divergence:  # a second forward, of the model as it is
            paths[place] += (len(spans),)
            spans.append((0, question.length))
            pairs = question.length**2 / 2
            costs.append(np.array([1, question.length * per_token, pairs * per_pair, 0]))
        targets = question.length - question.start + 1
        costs[paths[place][-1]][1] += per_target * targets * (1 + question.divergence)
    made = zip(spans, costs, strict=True)
    return Steps(tuple(Step(end - first, cost) for (first, end), cost in made), tuple(paths))


def _spans(
    tree: PrefixTree | None, questions: Sequence[Request]
) -> tuple[list[tuple[int, int]], list[tuple[int, ...]]]:
    """Return the first and end position of every run of input, and each question's runs."""
    if tree is not None:
        return [(node.first, node.end) for node in tree.nodes], list(tree.paths)
    turn: dict[Sequence[int], int] = {}
    paths: list[tuple[int, ...]] = [
        (turn.setdefault(question.tokens, len(turn)),) for question in questions
    ]
    return [(0, len(tokens)) for tokens in turn], paths


def prices(checkpoint: Checkpoint) -> tuple[float, float, float]:
    """Return the operations of a token in all layers, of a pair in all, of a target in the head."""
    config = checkpoint.config.get_text_config()
    heads, width = getattr(config, "num_attention_heads", None) or 0, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or width // max(heads, 1)
    table = config.vocab_size * width
    tables = table * (1 if getattr(config, "tie_word_embeddings", False) else 2)
    inside = max(checkpoint.parameter_count - tables, 1)
    return 2 * inside, 4 * heads * head_dim * config.num_hidden_layers, 2 * table
