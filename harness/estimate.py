"""What a plan will cost, told before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.checkpoint import DTYPES, parameter_count
from harness.engine import DEFAULT
from harness.plan import Plan

LIVE_WIDTHS = 8  # hidden-sized rows alive at once in one layer: residual, norm, q, k, v, output
LIVE_MLP = 3  # rows of the feed-forward width alive at once: gate, up, their product


@dataclass(frozen=True)
class Cost:
    """Cost of the samples that are left: tokens to forward, and bytes at the peak."""

    samples: int
    tokens: int
    parameters: int
    bytes: int


def estimate(plan: Plan, done: set[tuple[str, str]]) -> Cost:
    """Estimate a plan from its config alone.

    The peak is the weights, one layer's activations over the longest question, and the head's
    chunk of logits with its float32 copy.
    """
    questions = [question for items in plan.work(done).values() for _, question in items]
    config = plan.checkpoint.config.get_text_config()
    size = DTYPES[plan.checkpoint.dtype].itemsize
    longest = max((question.length for question in questions), default=0)
    rows = LIVE_WIDTHS * config.hidden_size + LIVE_MLP * (
        getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    )
    attention = _attention_bytes(config, plan.checkpoint.sliding_window, longest, size)
    targets = max((q.length - q.start + 1 for q in questions), default=0)
    head = 2 * min(DEFAULT.logits, targets * config.vocab_size * 4)
    parameters = parameter_count(plan.checkpoint)
    return Cost(
        samples=len(questions),
        tokens=sum(question.length for question in questions),
        parameters=parameters,
        bytes=parameters * size + longest * rows * size + attention + head,
    )


def _attention_bytes(config: Any, sliding: int | None, length: int, size: int) -> int:
    """Return what attention needs beyond the fused causal kernel, which needs nothing.

    Soft-capped scores are computed whole, in every head, with a float32 copy; a sliding window is
    a mask of one byte a pair.
    """
    if getattr(config, "attn_logit_softcapping", None):
        return int(config.num_attention_heads * length**2 * (size + 4))
    return length**2 if sliding is not None and length > sliding else 0
