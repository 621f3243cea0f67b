"""Build prompts token by token, to an exact length: the pass key's, and what all others share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tasks.types import Document, TaskContext

# The text of Mohtashami & Jaggi (arXiv:2305.16300), as most papers of the field use it.
INTRODUCTION = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them."
    " I will quiz you about the important information there.\n"
)
FILLER = (
    "The grass is green.",
    " The sky is blue.",
    " The sun is yellow.",
    " Here we go.",
    " There and back again.\n",
)
NEEDLE = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key?"
REPLY = " The pass key is"  # after the question; in a chat the beginning of the reply, as in RULER

Filler = Literal["standard", "documents"]


@dataclass(frozen=True)
class Prompt:
    """The tokens of a prompt, answer included, and the positions of needle and answer."""

    tokens: tuple[int, ...]
    needle: int
    start: int


def prompt(
    source: TaskContext,
    length: int,
    key: int,
    depth: float,
    *,
    filler: Filler,
    draw: Random,
    chat: bool = False,
) -> Prompt:
    """Build one prompt of exactly ``length`` tokens.

    ``depth`` 0 puts the needle before all filler, 1 after it. The needle stands between whole
    sentences of the standard filler, so only the last sentence before the question may be cut.
    """
    head, needle, question, answer = frame(source, key, chat=chat)
    least = len(head) + len(needle) + len(question) + len(answer)
    if length < least:
        raise ValueError(f"a passkey prompt needs at least {least} tokens, length is {length}")
    before, after = _filler(source, length - least, depth, filler, draw)
    tokens = (*head, *before, *needle, *after, *question, *answer)
    return Prompt(tokens, len(head) + len(before), length - len(answer))


def frame(
    source: TaskContext, key: int, *, chat: bool = False
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return the tokens of introduction, needle, question and answer, which every prompt has."""
    made = around(source, INTRODUCTION, QUESTION, REPLY, f" {key}", chat=chat)
    return made.head, continued(source, NEEDLE.format(key=key)), made.tail, made.answer


@dataclass(frozen=True)
class Frame:
    """The tokens before a context and after it, and those of the answer."""

    head: list[int]
    tail: list[int]
    answer: list[int]

    def taken(self, new: int) -> int:
        """Return its tokens with ``new`` ones after it; where these are 0, with the answer."""
        return len(self.head) + len(self.tail) + (new or len(self.answer))


def around(
    source: TaskContext,
    before: str,
    after: str,
    reply: str,
    answer: str = "",
    *,
    chat: bool = False,
) -> Frame:
    """Return what stands around a context; in a chat ``reply`` begins the assistant's message.

    Raises ValueError where the tokenizer cannot write the answer apart from the question.
    """
    asked: list[int] = []
    if chat:
        head, generation, space = source.chat(before)
        asked, stem = [*continued(source, after), *generation], space + reply.lstrip()
    else:
        head, stem = [*source.opening, *source.encode(before)], after + reply
    question = continued(source, stem)
    whole = continued(source, stem + answer)
    if whole[: len(question)] != question:
        raise ValueError(
            "the tokenizer merges the question with the answer, so neither can be told apart"
        )
    said = whole[len(question) :]
    if source.decode(said).strip() != answer.strip():
        told = f"the tokenizer cannot write {answer.strip()}: it reads back as"
        raise ValueError(f"{told} {source.decode(said)!r}")
    return Frame(head, [*asked, *question], said)


def inserted(
    pieces: Iterable[Sequence[int]],
    needles: Sequence[tuple[float, Sequence[int]]],
    room: int,
    end: Sequence[int] = (),
    more: int = 0,
) -> tuple[list[int], list[int]]:
    """Return ``room`` tokens of needles between pieces, and where each needle begins.

    A needle stands between two pieces, the nearest to its depth (0 before all, 1 after all); only
    the last piece is cut, and then ends with ``end``. The needles stand where they would in a room
    of ``more`` tokens less: with it, only the end differs. Raises ValueError where needles or
    pieces do not fill the room.
    """
    free = room - sum(len(needle) for _, needle in needles)
    tokens: list[int] = []
    bounds = [0]
    for piece in pieces:
        if len(tokens) >= free:
            break
        tokens += piece
        bounds.append(len(tokens))
    if not 0 <= free <= len(tokens):
        raise ValueError(
            f"{free} tokens are left for the text around what it hides; it has {len(tokens)}"
        )
    if bounds[-1] > free and len(end) <= free - bounds[-2]:
        tokens[free - len(end) : free] = end
    least = free - more
    bounds = [bound for bound in bounds if bound <= least]
    cuts = [min(bounds, key=lambda b: abs(b - depth * least)) for depth, _ in needles]
    made: list[int] = []
    starts = [0] * len(needles)
    done = 0
    for place in sorted(range(len(needles)), key=lambda place: needles[place][0]):
        made += tokens[done : cuts[place]]
        done, starts[place] = cuts[place], len(made)
        made += needles[place][1]
    return made + tokens[done:free], starts


def continued(source: TaskContext, text: str) -> list[int]:
    """Return the tokens of a text that continues other text.

    A SentencePiece tokenizer puts a space before any text, so the text is tokenized after an
    anchor that ends a word or a line, and the anchor's tokens are removed. Where a tokenizer
    merges the two, the text is tokenized alone.
    """
    anchor = "x" if text.startswith("\n") else "\n"
    head, whole = source.encode(anchor), source.encode(anchor + text)
    return whole[len(head) :] if whole[: len(head)] == head else source.encode(text)


def _filler(
    source: TaskContext, room: int, depth: float, kind: Filler, draw: Random
) -> tuple[Sequence[int], Sequence[int]]:
    """Return ``room`` tokens of filler in two parts, before and after the needle."""
    if kind == "documents":
        text = _excerpt(source.passages(), room, draw)
        cut = round(depth * room)
        return text[:cut], text[cut:]
    sentences = [continued(source, sentence) for sentence in FILLER]
    tokens: list[int] = []
    boundaries = [0]
    while len(tokens) < room:
        tokens += sentences[(len(boundaries) - 1) % len(sentences)]
        boundaries.append(len(tokens))
    cut = min((b for b in boundaries if b <= room), key=lambda b: abs(b - depth * room))
    return tokens[:cut], tokens[cut:room]


def _excerpt(passages: Sequence[Document], room: int, draw: Random) -> Sequence[int]:
    """Draw ``room`` consecutive tokens from one of the passages that have so many."""
    fitting = [passage for passage in passages if len(passage.tokens) >= room]
    if not fitting:
        longest = max((len(passage.tokens) for passage in passages), default=0)
        raise ValueError(f"no document holds {room} tokens of filler; the longest has {longest}")
    tokens = draw.choice(fitting).tokens
    first = draw.randrange(len(tokens) - room + 1)
    return tokens[first : first + room]
