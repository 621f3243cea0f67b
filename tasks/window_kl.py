"""Divergence from the unpatched model inside its trained window: what a method costs there.

The score is the mean Kullback-Leibler divergence KL(unpatched || patched) of the next-token
distributions, in nats per token. It is the extra loss when the patched model predicts the
unpatched model's own tokens. Windows and targets are those of ``perplexity:protocol=tail``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ropewalk.tasks import perplexity
from ropewalk.tasks._intervals import per_weight
from ropewalk.tasks.types import Count, Divergence, DivergenceResponse, Sample, Score, TaskContext

VERSION = 1
METRIC = "window_kl"


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    tail: int = 128,
    windows: Count = 1,
) -> Iterator[Divergence]:
    """Yield the windows of every length that is not longer than the trained window.

    ``tail`` and ``windows`` are those of perplexity. Raises ValueError as it does, and where no
    length is inside the window.
    """
    inside = [length for length in lengths if length <= context.trained_length]
    if not inside:
        raise ValueError(
            f"no length is inside the trained window ({context.trained_length}); add --length 1x"
        )
    for request in perplexity.ask(context, inside, seed=seed, tail=tail, windows=windows):
        facts = {name: request.metadata[name] for name in ("first", "window")}
        yield Divergence(request.tokens, request.start, doc_id=request.doc_id, metadata=facts)


def grade(request: Divergence, response: DivergenceResponse, context: TaskContext) -> Sample:
    """Sum the divergence over the targets, in nats; a fair sum in float64."""
    facts = {**request.metadata, "tokens": len(response.values)}
    return Sample(request.doc_id, math.fsum(response.values), len(response.values), facts)


def score(samples: Sequence[Sample]) -> Score:
    """Return the mean per token; the interval is that of the documents, which are n."""
    ratio, documents = per_weight(samples)
    low, high = ratio.interval()
    return Score(ratio.value, None if low is None else max(0.0, low), high, documents)
