"""Perplexity of long documents, same last tokens at every length (arXiv:2108.12409, rerope).

Token-weighted, in the model's own tokens. ``tail`` grows the context before a fixed set of targets,
so lengths may be compared. The other protocols mix length with text and are there to reproduce
published tables: ``prefix`` scores the first tokens of each document (YaRN, arXiv:2309.00071),
``press`` slides a window and scores what is new (PI, arXiv:2306.15595), ``disjoint`` sets windows
side by side, ``overlap`` scores all of every sliding window (LongLoRA, LCEG, ChunkLlama).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tasks._intervals import ratio
from tasks._positions import by_position
from tasks._protocols import PROTOCOLS, Layout, Protocol, tail_end
from tasks._types import Answer, Fact, Passage, Question, Sample, Score, Source

VERSION = 1
METRIC = "perplexity"


def ask(
    source: Source,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    protocol: Protocol = "tail",
    tail: int = 128,
    stride: int = 256,
) -> Iterator[Question]:
    """Yield the windows of a protocol, of the documents that hold the longest length.

    ``tail`` is the number of targets of the tail protocol, in tokens. Its windows end at three
    quarters of the document, whatever the lengths of the sweep: clear of title pages and
    licences, and the same targets when a length is added. ``stride`` is how far the windows of
    press and overlap move, in tokens. Raises ValueError when no document is long enough, saying
    what would fit, or when no context is left.
    """
    del seed  # nothing is drawn
    layout = Layout(source.opening, tail, stride)
    room = layout.room(min(lengths))
    if protocol == "tail" and not 0 < tail < min(lengths) - len(layout.opening):
        message = f"tail={tail} leaves no context in a window of {min(lengths)} tokens"
        raise ValueError(message)
    if protocol in ("press", "overlap") and not 0 < stride <= room:
        message = f"stride={stride} is not 1 to {room}, what a window of {min(lengths)} can score"
        raise ValueError(message)
    passages = _fitting(source, protocol, layout, max(lengths))
    for length in lengths:
        for window in PROTOCOLS[protocol](passages, length, layout):
            facts: dict[str, Fact] = {"protocol": protocol, "first": window.first}
            if window.bytes is not None:
                facts["bytes"] = window.bytes
            yield Question(window.unit, length, window.tokens, window.start, facts)


def _fitting(source: Source, protocol: Protocol, layout: Layout, length: int) -> list[Passage]:
    """Return the documents that hold a window of ``length`` tokens; of overlap, all if any does."""
    opening, passages = len(layout.opening), list(source.passages())
    if protocol == "overlap":
        held = sum(opening + len(passage.tokens) for passage in passages) - layout.stride - 1
        fitting = passages if held >= length else []
    else:
        read = tail_end if protocol == "tail" else lambda passage: len(passage.tokens)
        room = [read(passage) + opening for passage in passages]
        held = max(room, default=0)
        fitting = [p for p, tokens in zip(passages, room, strict=True) if tokens >= length]
    if not fitting:
        message = (
            f"no document holds a window of {length} tokens; the longest that fits is "
            f"{max(held, 0)}: ask for shorter lengths or give longer documents"
        )
        raise ValueError(message)
    return fitting


def grade(question: Question, answer: Answer, source: Source) -> Sample:
    """Sum the loss over the targets, in nats; a fair sum in float64."""
    losses = by_position(question.start, answer.nll)
    facts = {**question.facts, "tokens": len(answer.nll), **losses}
    return Sample(question.unit, math.fsum(answer.nll), len(answer.nll), facts)


def score(samples: Sequence[Sample]) -> Score:
    """Return exp(mean loss per token); the interval is that of the documents, which are n."""
    sums: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for sample in samples:
        sums.setdefault(sample.unit, []).append(sample.value)
        counts[sample.unit] = counts.get(sample.unit, 0) + sample.weight
    losses = [math.fsum(values) for values in sums.values()]
    found = ratio(losses, list(counts.values()))
    low, high = found.interval()
    return Score(
        _exp(found.value),
        None if low is None else _exp(low),
        None if high is None else _exp(high),
        len(losses),
    )


def _exp(nats: float) -> float:
    """Return e^nats; a loss past 700 nats has no perplexity in a float and is held there."""
    return math.exp(min(nats, 700.0))
