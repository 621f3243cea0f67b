"""Perplexity of long documents, same last tokens at every length (arXiv:2108.12409, rerope).

Token-weighted, in the model's own tokens, every window opened by the begin token. ``tail`` grows
the context before a fixed set of targets, so lengths may be compared; ``prefix`` scores the first
tokens of each document, as YaRN's tables do (arXiv:2309.00071), and mixes length with text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from tasks._intervals import ratio
from tasks._positions import by_position
from tasks._types import Answer, Passage, Question, Sample, Score, Source

VERSION = 1
METRIC = "perplexity"

Protocol = Literal["tail", "prefix"]


def ask(
    source: Source,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    protocol: Protocol = "tail",
    tail: int = 128,
) -> Iterator[Question]:
    """Yield one window per document and length, of the documents that hold the longest length.

    ``tail`` is the number of targets of the tail protocol, in tokens. Its windows end at three
    quarters of the document, whatever the lengths of the sweep: clear of title pages and
    licences, and the same targets when a length is added. Raises ValueError when no document is
    long enough, saying what would fit, or when no context is left.
    """
    del seed  # nothing is drawn
    opening = source.opening
    longest = max(lengths) - len(opening)
    if protocol == "tail" and not 0 < tail < min(lengths) - len(opening):
        message = f"tail={tail} leaves no context in a window of {min(lengths)} tokens"
        raise ValueError(message)
    room = {p: _end(p) if protocol == "tail" else len(p.tokens) for p in source.passages()}
    passages = [passage for passage, tokens in room.items() if tokens >= longest]
    if not passages:
        held = max(room.values(), default=0) + len(opening)
        message = (
            f"no document holds a window of {max(lengths)} tokens; the longest that fits is {held}:"
            " ask for shorter lengths or give longer documents"
        )
        raise ValueError(message)
    for length in lengths:
        text = length - len(opening)
        for passage in passages:
            if protocol == "tail":
                end = _end(passage)
                tokens, start = passage.tokens[end - text : end], length - tail
            else:
                tokens, start = passage.tokens[:text], 1
            yield Question(passage.name, length, (*opening, *tokens), start, {"protocol": protocol})


def _end(passage: Passage) -> int:
    """Return where the tail protocol's windows end, in tokens."""
    return len(passage.tokens) * 3 // 4


def grade(question: Question, answer: Answer, source: Source) -> Sample:
    """Sum the loss over the targets, in nats; a fair sum in float64."""
    losses = by_position(question.start, answer.nll)
    facts = {**question.facts, "tokens": len(answer.nll), **losses}
    return Sample(question.unit, math.fsum(answer.nll), len(answer.nll), facts)


def score(samples: Sequence[Sample]) -> Score:
    """Return exp(mean loss per token); the interval is that of the documents."""
    found = ratio([sample.value for sample in samples], [sample.weight for sample in samples])
    low, high = found.interval()
    return Score(
        _exp(found.value),
        None if low is None else _exp(low),
        None if high is None else _exp(high),
        len(samples),
    )


def _exp(nats: float) -> float:
    """Return e^nats; a loss past 700 nats has no perplexity in a float and is held there."""
    return math.exp(min(nats, 700.0))
