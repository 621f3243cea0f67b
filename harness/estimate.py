"""What a plan will cost, told before anything is loaded, and the sizes that fit into its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.checkpoint import DTYPES, parameter_count
from harness.engine import DEFAULT, Sizes, memory
from harness.engine.forest import Forest, plant
from harness.errors import UserError
from harness.plan import Cell, Plan
from tasks._types import Question

Work = dict[str, list[tuple[Cell, Question]]]


@dataclass(frozen=True)
class Cost:
    """Cost of the samples that are left: tokens to forward, and bytes at the peak."""

    samples: int
    tokens: int
    parameters: int
    bytes: int


def estimate(plan: Plan, done: set[tuple[str, str]]) -> Cost:
    """Estimate a plan from its config alone: what is shared is forwarded once."""
    work = plan.work(done)
    sizes = fitted(plan, work)
    groups = [[question for _, question in items] for items in work.values()]
    return Cost(
        samples=sum(map(len, groups)),
        tokens=sum(_tokens(plan, group) for group in groups),
        parameters=parameter_count(plan.checkpoint),
        bytes=_bytes(plan, groups, sizes),
    )


def fitted(plan: Plan, work: Work) -> Sizes:
    """Return the fastest sizes that keep to the memory asked for.

    Raises UserError where even the smallest do not, telling how much they need.
    """
    limit = plan.spec.memory
    if limit is None or not work:
        return DEFAULT
    groups = [[question for _, question in items] for items in work.values()]
    needed = 0
    for sizes in memory.smaller():
        needed = _bytes(plan, groups, sizes)
        if needed <= limit:
            return sizes
    message = (
        f"--max-memory {plan.spec.max_memory} is too little: the weights and the longest question"
        f" need about {needed / 2**20:,.0f} MiB; ask for shorter lengths or allow more."
    )
    raise UserError(message)


def _tokens(plan: Plan, questions: Sequence[Question]) -> int:
    if _shares(plan):
        return sum(len(node.tokens) for node in _forest(questions).nodes)
    return sum(map(len, {question.tokens for question in questions}))


def _forest(questions: Sequence[Question]) -> Forest:
    return plant([question.tokens for question in questions])


def _shares(plan: Plan) -> bool:
    """Tell from the config whether questions are computed together: plain causal attention."""
    config = plan.checkpoint.config.get_text_config()
    capped = getattr(config, "attn_logit_softcapping", None)
    return plan.checkpoint.sliding_window is None and not capped


def _bytes(plan: Plan, groups: Sequence[Sequence[Question]], sizes: Sizes) -> int:
    """Return the weights and the peak of the most demanding frequencies."""
    config, dtype = plan.checkpoint.config.get_text_config(), DTYPES[plan.checkpoint.dtype]
    shape = memory.Shape.of(config, dtype.itemsize)
    peaks = [0]
    for group in groups:
        targets = sum(question.length - question.start + 1 for question in group)
        if _shares(plan):
            peaks.append(memory.shared(shape, _forest(group), targets, sizes))
        else:
            longest = max(question.length for question in group)
            beside = _attention_bytes(
                config, plan.checkpoint.sliding_window, longest, dtype.itemsize
            )
            peaks.append(memory.whole(shape, longest, beside, targets, sizes))
    return parameter_count(plan.checkpoint) * dtype.itemsize + max(peaks)


def _attention_bytes(config: Any, sliding: int | None, length: int, size: int) -> int:
    """Return what attention needs beyond the fused causal kernel, which needs nothing.

    Soft-capped scores are computed whole, in every head, with a float32 copy; a sliding window is
    a mask of one byte a pair.
    """
    if getattr(config, "attn_logit_softcapping", None):
        return int(config.num_attention_heads * length**2 * (size + 4))
    return length**2 if sliding is not None and length > sliding else 0
