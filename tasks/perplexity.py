"""Perplexity of long documents, same last tokens at every length (arXiv:2108.12409, rerope).

The mean is weighted by tokens, in the model's own tokens. ``tail`` grows the context before a fixed
set of targets, so lengths may be compared. The other protocols score other text at every length and
reproduce published tables:

- ``prefix`` scores the first tokens of each document (YaRN, arXiv:2309.00071);
- ``sliding`` moves a window by a stride and scores its new tokens (PI, arXiv:2306.15595);
- ``disjoint`` uses adjacent windows;
- ``overlapping`` scores all tokens of every window (LongLoRA, LCEG, ChunkLlama).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ropewalk.tasks._intervals import per_weight
from ropewalk.tasks._protocols import PROTOCOLS, STRIDE, TAIL, Layout, Protocol, check, fitting
from ropewalk.tasks.types import (
    Count,
    Fact,
    Loglikelihood,
    LoglikelihoodResponse,
    Sample,
    Score,
    TaskContext,
)

VERSION = 1
METRIC = "perplexity"
BUCKETS = 32  # at most of a whole window, so that a sample stays one short line
DIGITS = 6  # after the point, of a loss in nats: finer than float32 computes it


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    protocol: Protocol = "tail",
    tail: int = TAIL,
    windows: Count = 1,
    stride: int = STRIDE,
    slide: bool = False,
) -> Iterator[Loglikelihood]:
    """Yield the windows of a protocol, from the documents with room for the longest length.

    ``tail`` is the number of targets in a window of the tail protocol, in tokens. ``windows`` is
    the number of windows per document. They end evenly over its third quarter, clear of title pages
    and licences, and keep their targets when a length is added. A document has fewer windows if
    their targets would overlap, or if the longest length would begin before the document.

    With ``slide``, the targets may be more than a window of a shorter length holds. Several windows
    of that length then score all of them, each moved on by an eighth of the length. ``stride`` is
    how far sliding and overlapping windows move, in tokens. Overlapping windows with a stride of
    the length are adjacent.

    Raises ValueError when no document is long enough, with the length that would fit, or when no
    context is left.
    """
    layout = Layout(context.opening, tail, stride, windows, max(lengths), slide)
    check(protocol, layout, min(lengths))
    documents = fitting(list(context.documents()), protocol, layout)
    for length in lengths:
        for window in PROTOCOLS[protocol](documents, length, layout):
            facts: dict[str, Fact] = {"protocol": protocol, "first": window.first}
            if slide:
                facts["slide"] = slide
            if window.number is not None:
                facts["window"] = window.number
            if ends := window.ends:
                facts["bytes"] = ends[-1] - ends[0]
            if ends and window.number is not None:  # where every target stands in the text
                facts["begin"] = ends[0]
                facts["sizes"] = " ".join(str(end - one) for one, end in pairwise(ends))
            yield Loglikelihood(window.tokens, window.start, doc_id=window.doc_id, metadata=facts)


def grade(request: Loglikelihood, response: LoglikelihoodResponse, context: TaskContext) -> Sample:
    """Sum the loss over the targets, in nats, as an exact sum in float64.

    For ``tail``, whose windows have the same targets at every length, each loss is kept.
    """
    each = request.metadata.get("protocol") == "tail" and not request.metadata.get("slide")
    losses = by_position(request.start, response.nll, each=each)
    facts = {**request.metadata, "tokens": len(response.nll), **losses}
    return Sample(request.doc_id, math.fsum(response.nll), len(response.nll), facts)


def score(samples: Sequence[Sample]) -> Score:
    """Return exp(mean loss per token); the interval is that of the documents, which are n."""
    ratio, documents = per_weight(samples)
    return Score(*ratio.exp(), documents)


def by_position(start: int, nll: Sequence[float], *, each: bool = False) -> dict[str, Fact]:
    """Return the facts of a window's losses: ``start``, ``bucket`` and ``losses``.

    ``start`` is the position of the first target, and ``bucket`` the number of targets per run.
    ``losses`` has the mean loss of every run in nats per token; the last run has the remaining
    targets. With ``each``, a run is one target.
    """
    bucket = 1 if each else math.ceil(len(nll) / BUCKETS)
    runs = [nll[first : first + bucket] for first in range(0, len(nll), bucket)]
    losses = [round(math.fsum(run) / len(run), DIGITS) for run in runs]
    return {"start": start, "bucket": bucket, "losses": losses}
