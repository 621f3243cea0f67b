"""Choose the windows of the documents, and the scored tokens of each, by protocol."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Literal

from tasks._tokens import Tokens
from tasks.types import Document

SLIDE = 8  # windows that slide move on by one part of their length in so many
MOST = 300_000  # windows of a task; a plan has no room for more questions
Protocol = Literal["tail", "prefix", "press", "disjoint", "overlap"]


@dataclass(frozen=True)
class Layout:
    """The input of all protocols: the begin tokens, and the options.

    ``tail``, ``stride`` and ``longest``, the longest length of the sweep, are in tokens;
    ``windows`` are those of one document; ``slide`` is explained in ``tail``.
    """

    opening: tuple[int, ...]
    tail: int
    stride: int
    windows: int = 1
    longest: int = 0
    slide: bool = False

    def room(self, length: int) -> int:
        """Return how many tokens a window can score: all but its begin tokens, or but one."""
        return length - max(1, len(self.opening))


@dataclass(frozen=True)
class Window:
    """One window: ``tokens`` from ``start`` on are scored.

    ``first`` and ``end`` are the places in the document, or in the stream of all documents, of the
    first scored token and after the last;
    ``bytes`` are those of the scored text in UTF-8, None for a tokenizer without offsets;
    ``number`` names the window of a document in the tail protocol, and ``ends`` has the bytes of
    the document before each of its targets and after the last.
    """

    unit: str
    tokens: Tokens
    start: int
    first: int
    end: int
    bytes: int | None
    number: int | None = None
    ends: Sequence[int] = ()


Windows = Callable[[Sequence[Document], int, Layout], Iterator[Window]]


def tail(passages: Sequence[Document], length: int, layout: Layout) -> Iterator[Window]:
    """Yield windows whose last tokens are scored: the same targets at every length.

    With ``slide``, every length but the longest has several windows for these targets, moved on by
    an eighth of the length: so each target has at least 7/8 of a window before it, or all of the
    document. It is what a user has who cuts every prompt to that length.
    """
    stride = max(1, length // SLIDE) if layout.slide and length < layout.longest else layout.tail
    for passage in passages:
        for number, end in enumerate(tail_ends(passage, layout)):
            for window in _slid(passage, end - layout.tail, end, length, stride, layout):
                ends = (passage.ends or ())[window.first : window.end + 1]
                yield replace(window, number=number, ends=ends)


def tail_ends(passage: Document, layout: Layout) -> list[int]:
    """Return where the windows of a document end, in tokens, spread evenly over its third quarter.

    The first ends at three quarters, each further one earlier. There are fewer than ``windows``
    where targets would overlap, or where a window would not have room for the longest length.
    """
    last, quarter = tail_end(passage), len(passage.tokens) // 4
    count = max(1, min(layout.windows, quarter // layout.tail))
    ends = [last - number * quarter // count for number in range(count)]
    return [end for end in ends if end + len(layout.opening) >= layout.longest]


def tail_end(passage: Document) -> int:
    """Return where the last window of the tail protocol ends, in tokens."""
    return len(passage.tokens) * 3 // 4


def prefix(passages: Sequence[Document], length: int, layout: Layout) -> Iterator[Window]:
    """Yield the first tokens of each document."""
    for passage in passages:
        yield _window(passage, 0, 0, length - len(layout.opening), layout)


def press(passages: Sequence[Document], length: int, layout: Layout) -> Iterator[Window]:
    """Yield windows that move by the stride and score only their new tokens.

    The first scores all of its tokens, so every token of a document counts once. Differs from the
    published loops: the last window is moved back to be as long as the others, so that its new
    tokens, fewer than the stride, have up to a stride more of context.
    """
    text = length - len(layout.opening)
    for passage in passages:
        yield _window(passage, 0, 0, text, layout)
        yield from _slid(passage, text, len(passage.tokens), length, layout.stride, layout)


def disjoint(passages: Sequence[Document], length: int, layout: Layout) -> Iterator[Window]:
    """Yield windows side by side, every token once; the last is moved back as in ``press``.

    Differs from lm-evaluation-harness: each window opens with the begin token, where that has it
    in the first alone and the token before in the others, as windows have here without one.
    """
    yield from press(passages, length, replace(layout, stride=layout.room(length)))


def overlap(passages: Sequence[Document], length: int, layout: Layout) -> Iterator[Window]:
    """Yield windows a stride apart over all documents in one stream, every position scored.

    As LongLoRA, LCEG and ChunkLlama do: windows cross documents, only a document opens with the
    begin token, and the last window is dropped, so that most tokens count length / stride times.
    With a stride of the length, windows are side by side and none is dropped. A window belongs to
    the document in which it begins.
    """
    whole = stream(passages, layout.opening)
    starts = list(accumulate(len(layout.opening) + len(p.tokens) for p in passages))
    owner = 0
    for begin in overlap_starts(len(whole.tokens), length, layout.stride):
        while starts[owner] <= begin:
            owner += 1
        window = _window(whole, begin, begin, begin + length, replace(layout, opening=()))
        yield replace(window, unit=passages[owner].name)


def overlap_starts(total: int, length: int, stride: int) -> range:
    """Return where the windows of a stream of ``total`` tokens begin."""
    if stride == length:
        return range(0, total - length + 1, stride)
    return range(0, total - length, stride)[:-1]


def stream(passages: Sequence[Document], opening: tuple[int, ...]) -> Document:
    """Join documents, each after its begin tokens, which have no bytes."""
    tokens = Tokens(chain.from_iterable((*opening, *p.tokens) for p in passages))
    if any(passage.ends is None for passage in passages):
        return Document("", tokens)
    ends, total = array("q", [0]), 0
    for passage in passages:
        ends.extend([total] * len(opening))
        ends.extend(total + end for end in (passage.ends or ())[1:])
        total = ends[-1]
    return Document("", tokens, ends)


def _slid(
    passage: Document, seen: int, last: int, length: int, stride: int, layout: Layout
) -> Iterator[Window]:
    """Yield windows of one length that score the tokens from ``seen`` to ``last`` once."""
    text = length - len(layout.opening)
    while seen < last:
        end = min(max(seen + stride, text), last)
        yield _window(passage, end - text, seen, end, layout)
        seen = end


def _window(passage: Document, begin: int, first: int, end: int, layout: Layout) -> Window:
    """Return the document's tokens from ``begin`` to ``end``, scored from ``first`` on."""
    tokens = Tokens(passage.tokens[begin:end], layout.opening)
    # Without a begin token, nothing precedes the first token.
    start = max(1, len(layout.opening) + first - begin)
    first = begin + start - len(layout.opening)
    scored = None if passage.ends is None else passage.ends[end] - passage.ends[first]
    return Window(passage.name, tokens, start, first, end, scored)


PROTOCOLS: dict[Protocol, Windows] = {
    "tail": tail,
    "prefix": prefix,
    "press": press,
    "disjoint": disjoint,
    "overlap": overlap,
}


def check(protocol: Protocol, layout: Layout, length: int) -> None:
    """Raise ValueError for options that leave the shortest window without targets or context."""
    if layout.windows < 1:
        raise ValueError(f"windows={layout.windows} is not 1 or more")
    shortest = layout.longest if layout.slide else length
    if protocol == "tail" and not 0 < layout.tail < shortest - len(layout.opening):
        raise ValueError(f"tail={layout.tail} leaves no context in a window of {shortest} tokens")
    if layout.slide and protocol != "tail":
        raise ValueError(f"slide is an option of protocol=tail; protocol={protocol} has none")
    if layout.room(length) < 1:
        raise ValueError(f"a window of {length} token has no target")
    most = length if protocol == "overlap" else layout.room(length)
    if protocol in ("press", "overlap") and not 0 < layout.stride <= most:
        raise ValueError(
            f"stride={layout.stride} is not 1 to {most}, for a window of {length} tokens"
        )


def check_count(
    protocol: Protocol, passages: Sequence[Document], lengths: Sequence[int], layout: Layout
) -> None:
    """Raise ValueError for more windows than a sweep may have, before one is made."""
    many = sum(count(protocol, passages, length, layout) for length in lengths)
    if many > MOST:
        raise ValueError(
            f"the documents have {many:,} windows of this protocol and these lengths, at most"
            f" {MOST:,} are measured: ask for a larger stride, or for fewer documents or lengths"
        )


def count(protocol: Protocol, passages: Sequence[Document], length: int, layout: Layout) -> int:
    """Return how many windows a protocol has at one length."""
    if protocol == "overlap":
        total = sum(len(layout.opening) + len(passage.tokens) for passage in passages)
        return len(overlap_starts(total, length, layout.stride))
    if protocol == "tail":
        slid = layout.slide and length < layout.longest
        each = -(-layout.tail // max(1, length // SLIDE)) if slid else 1
        return each * sum(len(tail_ends(passage, layout)) for passage in passages)
    if protocol == "prefix":
        return len(passages)
    stride = layout.stride if protocol == "press" else layout.room(length)
    unseen = (len(p.tokens) + len(layout.opening) - length for p in passages)
    return sum(1 - -tokens // stride for tokens in unseen)


def fitting(passages: list[Document], protocol: Protocol, layout: Layout) -> list[Document]:
    """Return the documents with room for the longest length; of overlap, all or none.

    Raises ValueError where none has, with the length that would fit.
    """
    opening, length = len(layout.opening), layout.longest
    if protocol == "overlap":
        total = sum(opening + len(passage.tokens) for passage in passages)
        held = total if layout.stride == length else total - layout.stride - 1
        found = passages if held >= length else []
    else:
        read = tail_end if protocol == "tail" else lambda passage: len(passage.tokens)
        room = [read(passage) + opening for passage in passages]
        held = max(room, default=0)
        found = [p for p, tokens in zip(passages, room, strict=True) if tokens >= length]
    if not found:
        raise ValueError(
            f"no document holds a window of {length} tokens; the longest that fits is "
            f"{max(held, 0)}: ask for shorter lengths or give longer documents"
        )
    return found
