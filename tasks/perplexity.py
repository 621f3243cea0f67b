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
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Literal

from ropewalk.tasks._intervals import per_weight
from ropewalk.tasks._tokens import Tokens
from ropewalk.tasks.types import (
    Count,
    Document,
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
TAIL, STRIDE = 128, 256  # the options' defaults, in tokens
JOINED = 4  # windows of one length that fill a unit of overlapping windows
SLIDE = 8  # windows that slide move on by one part of their length in so many
Protocol = Literal["tail", "prefix", "sliding", "disjoint", "overlapping"]


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
    layout = Layout(protocol, context.opening, tail, stride, windows, max(lengths), slide)
    check(layout, min(lengths))
    documents = fitting(list(context.documents()), layout)
    make = overlapping if protocol == "overlapping" else slid
    for length in lengths:
        yield from make(documents, length, layout)


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


@dataclass(frozen=True)
class Layout:
    """The protocol, the begin tokens of a window, and the options.

    ``tail``, ``stride`` and ``longest``, the longest length of the sweep, are in tokens;
    ``windows`` are those of one document; ``slide`` is explained in ``slid``.
    """

    protocol: Protocol
    opening: tuple[int, ...]
    tail: int = TAIL
    stride: int = STRIDE
    windows: int = 1
    longest: int = 0
    slide: bool = False

    def room(self, length: int) -> int:
        """Return how many tokens a window can score: all but its begin tokens or first token."""
        return length - max(1, len(self.opening))


def window(
    document: Document,
    seen: int,
    end: int,
    length: int,
    layout: Layout,
    *,
    doc_id: str,
    number: int = 0,
) -> Loglikelihood:
    """Return the window that ends at a place of a document and scores its tokens from ``seen`` on.

    Those before ``seen`` are scored elsewhere, or are context only. ``number`` is that of the
    document's window in the tail protocol.
    """
    begin = end - (length - len(layout.opening))
    start = max(1, length - (end - seen))  # nothing precedes a first token
    first = end - (length - start)
    facts: dict[str, Fact] = {"protocol": layout.protocol, "first": first}
    if layout.slide:
        facts["slide"] = True
    if layout.protocol == "tail":
        facts["window"] = number
    if document.ends:
        ends = document.ends[first : end + 1]
        facts["bytes"] = ends[-1] - ends[0]
        if layout.protocol == "tail":  # where every target stands in the text
            facts["begin"] = ends[0]
            facts["sizes"] = " ".join(str(after - before) for before, after in pairwise(ends))
    tokens = Tokens(document.tokens[begin:end], layout.opening)
    return Loglikelihood(tokens, start, doc_id=doc_id, metadata=facts)


def slid(documents: Sequence[Document], length: int, layout: Layout) -> Iterator[Loglikelihood]:
    """Yield windows of one length that score targets of each document once.

    - ``tail`` scores the last tokens of a window, the same targets at every length. With ``slide``,
      every length but the longest has several windows for these targets, each moved on by an
      eighth of the length. Each target then has at least 7/8 of a window before it, or all of the
      document. A user who cuts every prompt to that length gets the same context.
    - ``prefix`` scores the first tokens of a document.
    - ``sliding`` scores every token of a document; a window but the first scores ``stride`` tokens.
      Differs from the published loops: the last window is moved back to the length of the others.
      Its new tokens, fewer than the stride, then have up to a stride more of context.
    - ``disjoint`` has adjacent windows; the last is moved back as in ``sliding``. Differs from
      lm-evaluation-harness: here each window opens with the begin token. There only the first
      window does, and the others open with the previous token. Without a begin token, windows are
      the same here.
    """
    text = length - len(layout.opening)
    for document in documents:
        match layout.protocol:
            case "tail":
                several = layout.slide and length < layout.longest
                stride = max(1, length // SLIDE) if several else layout.tail
                spans = [(end - layout.tail, end) for end in tail_ends(document, layout)]
            case "prefix":
                stride, spans = text, [(0, text)]
            case "sliding":
                stride, spans = layout.stride, [(0, len(document.tokens))]
            case "disjoint":
                stride, spans = layout.room(length), [(0, len(document.tokens))]
        for number, (seen, last) in enumerate(spans):
            while seen < last:
                end = min(max(seen + stride, text), last)
                yield window(
                    document, seen, end, length, layout, doc_id=document.name, number=number
                )
                seen = end


def tail_ends(document: Document, layout: Layout) -> list[int]:
    """Return where the windows of a document end, in tokens, spread evenly over its third quarter.

    The first ends at three quarters, each further one earlier. There are fewer than ``windows``
    where targets would overlap, or where a window would not have room for the longest length.
    """
    last, quarter = tail_end(document), len(document.tokens) // 4
    count = max(1, min(layout.windows, quarter // layout.tail))
    ends = [last - number * quarter // count for number in range(count)]
    return [end for end in ends if end + len(layout.opening) >= layout.longest]


def tail_end(document: Document) -> int:
    """Return where the last window of the tail protocol ends, in tokens."""
    return len(document.tokens) * 3 // 4


def overlapping(
    documents: Sequence[Document], length: int, layout: Layout
) -> Iterator[Loglikelihood]:
    """Yield windows a stride apart over all documents in one stream, every position scored.

    The windows are those of LongLoRA, LCEG and ChunkLlama. They cross documents, only a document
    opens with the begin token, and the last window is dropped. Most tokens therefore count
    length / stride times. With a stride of the length, windows are adjacent and none is dropped. A
    window belongs to the document in which it begins. Windows of several documents that are short
    share their tokens, so documents that fill fewer than four windows are one unit with the next.
    """
    whole = stream(documents, layout.opening)
    sizes = [len(layout.opening) + len(document.tokens) for document in documents]
    ends, units = list(accumulate(sizes)), joined(documents, sizes, JOINED * length)
    last = len(whole.tokens) - length
    begins = range(0, last, layout.stride)[:-1]
    inside = replace(layout, opening=())  # the begin tokens are in the stream
    for begin in range(0, last + 1, length) if layout.stride == length else begins:
        unit = units[bisect_right(ends, begin)]
        yield window(whole, begin, begin + length, length, inside, doc_id=unit)


def joined(documents: Sequence[Document], sizes: Sequence[int], least: int) -> list[str]:
    """Return the unit of each document: the first of neighbours that have ``least`` tokens."""
    units: list[str] = []
    held = least
    for document, size in zip(documents, sizes, strict=True):
        first = held >= least
        units.append(document.name if first else units[-1])
        held = size if first else held + size
    return units


def stream(documents: Sequence[Document], opening: tuple[int, ...]) -> Document:
    """Join documents, each after its begin tokens, which have no bytes."""
    tokens = Tokens(chain.from_iterable((*opening, *d.tokens) for d in documents))
    if any(document.ends is None for document in documents):
        return Document("", tokens)
    ends, total = array("q", [0]), 0
    for document in documents:
        ends.extend([total] * len(opening))
        ends.extend(total + end for end in (document.ends or ())[1:])
        total = ends[-1]
    return Document("", tokens, ends)


# The protocols that read each option; with any other, only its default is accepted.
READ: dict[str, tuple[Protocol, ...]] = {
    "tail": ("tail",),
    "windows": ("tail",),
    "slide": ("tail",),
    "stride": ("sliding", "overlapping"),
}


def check(layout: Layout, length: int) -> None:
    """Raise ValueError for an option that the protocol does not read, or that leaves no target."""
    protocol, default = layout.protocol, Layout("tail", ())
    for option, protocols in READ.items():
        if protocol not in protocols and getattr(layout, option) != getattr(default, option):
            own = " and ".join(protocols)
            raise ValueError(
                f"{option} is an option of protocol={own}; leave it out with protocol={protocol}"
            )
    shortest = layout.longest if layout.slide else length
    if protocol == "tail" and not 0 < layout.tail < shortest - len(layout.opening):
        raise ValueError(f"tail={layout.tail} leaves no context in a window of {shortest} tokens")
    if layout.room(length) < 1:
        raise ValueError(f"a window of {length} token has no target")
    most = length if protocol == "overlapping" else layout.room(length)
    if protocol in ("sliding", "overlapping") and not 0 < layout.stride <= most:
        raise ValueError(
            f"stride={layout.stride} is not 1 to {most}, for a window of {length} tokens"
        )


def fitting(documents: list[Document], layout: Layout) -> list[Document]:
    """Return the documents with room for the longest length; for overlapping windows all or none.

    Raises ValueError, with the length that would fit, if no document is long enough.
    """
    opening, length = len(layout.opening), layout.longest
    tail = layout.protocol == "tail"
    if layout.protocol == "overlapping":
        total = sum(opening + len(document.tokens) for document in documents)
        held = total if layout.stride == length else total - layout.stride - 1
        fitted = documents if held >= length else []
    else:
        room = [opening + (tail_end(d) if tail else len(d.tokens)) for d in documents]
        held = max(room, default=0)
        fitted = [d for d, tokens in zip(documents, room, strict=True) if tokens >= length]
    if not fitted:
        where = " in its first three quarters" if tail else ""
        raise ValueError(
            f"no document holds a window of {length} tokens{where}; the longest that fits is "
            f"{max(held, 0)}: ask for shorter lengths or give longer documents"
        )
    return fitted
