"""What workers are given: batches of a fair size that keep what shares a beginning together."""

from __future__ import annotations

from collections.abc import Sequence

from harness.engine.prefix_tree import in_order
from harness.sweep.plan import Batch, Item
from tasks._tokens import kept

ROUNDS = 4  # batches a worker gets, so that the last to end is not far behind


def split(work: Sequence[Batch], workers: int) -> list[Batch]:
    """Return the work in batches, the longest first, none larger than a fair part where possible.

    A part is fair where every worker gets several.
    """
    fair = sum(batch.tokens for batch in work) / (ROUNDS * workers)
    batches: list[Batch] = []
    for batch in work:
        items: list[Item] = []
        tokens = 0
        for family in _families(batch.items):
            more = sum(item.question.length for item in family)
            if items and tokens + more > fair:
                batches.append(Batch(batch.rotation, tuple(items)))
                items, tokens = [], 0
            items += family
            tokens += more
        batches.append(Batch(batch.rotation, tuple(items)))
    return sorted(batches, key=lambda batch: -batch.tokens)


def _families(items: Sequence[Item]) -> list[list[Item]]:
    """Group questions that share half of their tokens or more: the engine computes those once."""
    families: list[list[Item]] = []
    for item in sorted(items, key=lambda item: in_order(item.question.tokens)):
        if families:
            before, tokens = (kept(one.question.tokens) for one in (families[-1][-1], item))
            if 2 * before.common(tokens) >= min(len(before), len(tokens)):
                families[-1].append(item)
                continue
        families.append([item])
    return families
