"""Which windows of the documents are read, and which of their tokens are scored, by protocol."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Literal

from tasks._tokens import Tokens
from tasks._types import Passage

Protocol = Literal["tail", "prefix", "press", "disjoint", "overlap"]


@dataclass(frozen=True)
class Layout:
    """What all protocols are told: the begin tokens, and the options in tokens."""

    opening: tuple[int, ...]
    tail: int
    stride: int

    def room(self, length: int) -> int:
        """Return how many tokens a window can score: all but what opens it, one at the least."""
        return length - max(1, len(self.opening))


@dataclass(frozen=True)
class Window:
    """One window: ``tokens`` from ``start`` on are scored.

    ``first`` is the first scored token's place in the document, or in the stream of all documents;
    ``bytes`` are those of the scored text in UTF-8, None where the tokenizer does not tell.
    """

    unit: str
    tokens: Tokens
    start: int
    first: int
    bytes: int | None


Windows = Callable[[Sequence[Passage], int, Layout], Iterator[Window]]


def tail(passages: Sequence[Passage], length: int, layout: Layout) -> Iterator[Window]:
    """Yield the last tokens before three quarters of each document: the same at every length."""
    text = length - len(layout.opening)
    for passage in passages:
        end = tail_end(passage)
        yield _window(passage, end - text, end - layout.tail, end, layout)


def tail_end(passage: Passage) -> int:
    """Return where the tail protocol's windows end, in tokens."""
    return len(passage.tokens) * 3 // 4


def prefix(passages: Sequence[Passage], length: int, layout: Layout) -> Iterator[Window]:
    """Yield the first tokens of each document."""
    for passage in passages:
        yield _window(passage, 0, 0, length - len(layout.opening), layout)


def press(passages: Sequence[Passage], length: int, layout: Layout) -> Iterator[Window]:
    """Yield windows that move on by the stride and score what they have not seen.

    The first scores all of its tokens, so every token of a document counts once. Differs from the
    published loops: the last window is moved back to be as long as the others, so that its new
    tokens, fewer than the stride, have up to a stride more of context.
    """
    text = length - len(layout.opening)
    for passage in passages:
        yield _window(passage, 0, 0, text, layout)
        seen, last = text, len(passage.tokens)
        while seen < last:
            end = min(seen + layout.stride, last)
            yield _window(passage, end - text, seen, end, layout)
            seen = end


def disjoint(passages: Sequence[Passage], length: int, layout: Layout) -> Iterator[Window]:
    """Yield windows side by side, every token once; the last is moved back as in ``press``.

    Differs from lm-evaluation-harness: each window opens with the begin token, where that has it
    in the first alone and the token before in the others, as windows have here without one.
    """
    yield from press(passages, length, replace(layout, stride=layout.room(length)))


def overlap(passages: Sequence[Passage], length: int, layout: Layout) -> Iterator[Window]:
    """Yield windows a stride apart over all documents in one stream, every position scored.

    As LongLoRA, LCEG and ChunkLlama do: windows cross documents, only a document opens with the
    begin token, and the last window is dropped, so that most tokens count length / stride times.
    A window belongs to the document in which it begins.
    """
    whole = stream(passages, layout.opening)
    starts = list(accumulate(len(layout.opening) + len(p.tokens) for p in passages))
    owner = 0
    for begin in range(0, len(whole.tokens) - length, layout.stride)[:-1]:
        while starts[owner] <= begin:
            owner += 1
        window = _window(whole, begin, begin, begin + length, replace(layout, opening=()))
        yield replace(window, unit=passages[owner].name)


def stream(passages: Sequence[Passage], opening: tuple[int, ...]) -> Passage:
    """Join documents, each behind its begin tokens, which have no bytes."""
    tokens = Tokens(chain.from_iterable((*opening, *p.tokens) for p in passages))
    if any(passage.ends is None for passage in passages):
        return Passage("", tokens)
    ends, total = array("q", [0]), 0
    for passage in passages:
        ends.extend([total] * len(opening))
        ends.extend(total + end for end in (passage.ends or ())[1:])
        total = ends[-1]
    return Passage("", tokens, ends)


def _window(passage: Passage, begin: int, first: int, end: int, layout: Layout) -> Window:
    """Return the document's tokens from ``begin`` to ``end``, scored from ``first`` on."""
    tokens = Tokens(passage.tokens[begin:end], layout.opening)
    # Where no begin token is known, nothing comes before the first token of all.
    start = max(1, len(layout.opening) + first - begin)
    first = begin + start - len(layout.opening)
    scored = None if passage.ends is None else passage.ends[end] - passage.ends[first]
    return Window(passage.name, tokens, start, first, scored)


PROTOCOLS: dict[Protocol, Windows] = {
    "tail": tail,
    "prefix": prefix,
    "press": press,
    "disjoint": disjoint,
    "overlap": overlap,
}
