"""Build prompts token by token, to an exact length; draw the words that RULER hides in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate, chain
from random import Random
from typing import Literal
from uuid import UUID

from ropewalk.tasks.types import Fact, Generate, Loglikelihood, TaskContext

Kind = Literal["words", "numbers", "uuids", "ten_digits"]
Chat = bool | Literal["direct", "think"]  # in a chat: without reasoning, or after it
Form = Literal["text", "argmax"]  # an answer that is written, or scored token by token
THINKING = 1024  # tokens that a model may think in before its answer
THOUGHT = "</think>"  # what ends its reasoning
BETWEEN = ", "  # answers in a record
SENTENCE_END = re.compile(r"(?<=[.!?]) ")
FILLER = (
    "The grass is green.",
    " The sky is blue.",
    " The sun is yellow.",
    " Here we go.",
    " There and back again.\n",
)


@dataclass(frozen=True)
class Frame:
    """The tokens before a context and after it, and those of the answer.

    An answer is written in up to ``new`` tokens, after up to ``thinking`` ones. Where ``new`` is 0
    the tokens ``answer`` are scored as targets.
    """

    head: list[int]
    tail: list[int]
    answer: list[int]
    new: int = 0
    thinking: int = 0

    @property
    def taken(self) -> int:
        """The tokens of a prompt and its answer without the context."""
        return len(self.head) + len(self.tail) + self.thinking + (self.new or len(self.answer))

    def room(self, length: int, hidden: int = 0) -> int:
        """Return how many tokens a context has in a prompt of ``length``.

        Raises ValueError, with the least length, where its ``hidden`` tokens do not fit.
        """
        if length < (least := self.taken + hidden):
            raise ValueError(
                f"a prompt and its answer need at least {least} tokens; --length {length} is too"
                " short"
            )
        return length - self.taken

    def hide(
        self,
        length: int,
        pieces: Iterable[Sequence[int]],
        needles: Sequence[tuple[float, Sequence[int]]],
        end: Sequence[int] = (),
        more: int = 0,
    ) -> tuple[list[int], list[int]]:
        """Return a context of needles between pieces, and where in the prompt each needle begins.

        A needle lies between the two pieces that are nearest to its depth (0 before all, 1 after
        all that are whole). Only the last piece is cut, and then ends with ``end``. ``more``
        changes only the end: the needles keep the places that they would have in a text shorter by
        ``more`` tokens. Raises ValueError, with the least length, where the needles do not fit, and
        if the pieces do not fill the rest.
        """
        taken = sum(len(needle) for _, needle in needles)
        free = self.room(length, taken + more) - taken
        whole = collected(pieces, free)
        tokens, bounds = list(chain.from_iterable(whole)), [0, *accumulate(map(len, whole))]
        if free > len(tokens):
            raise ValueError(f"the text around what it hides has {len(tokens)} of {free} tokens")
        if bounds[-1] > free and len(end) <= free - bounds[-2]:
            tokens[free - len(end) : free] = end
        least = free - more
        bounds = [bound for bound in bounds if bound <= least]
        cuts = [min(bounds, key=lambda b: abs(b - depth * least)) for depth, _ in needles]
        text, starts, done = list[int](), [0] * len(needles), 0
        for place in sorted(range(len(needles)), key=lambda place: needles[place][0]):
            text += tokens[done : cuts[place]]
            done, starts[place] = cuts[place], len(self.head) + len(text)
            text += needles[place][1]
        return text + tokens[done:free], starts

    def request(
        self,
        doc_id: str,
        middle: Sequence[int],
        facts: Mapping[str, Fact],
        stop: tuple[str, ...] = (),
    ) -> Loglikelihood | Generate:
        """Return the request whose context is ``middle``; reasoning ends at no string of stop."""
        prompt = [*self.head, *middle, *self.tail]
        if self.thinking:
            stop, facts = (), {**facts, "thinking": "on"}
        if self.new:
            new = self.new + self.thinking
            return Generate(prompt, new, stop, doc_id=doc_id, metadata=facts)
        return Loglikelihood([*prompt, *self.answer], len(prompt), doc_id=doc_id, metadata=facts)


def around(
    context: TaskContext,
    before: str,
    after: str,
    reply: str,
    answer: str = "",
    *,
    new: int = 0,
    chat: Chat = False,
) -> Frame:
    """Return the tokens around a context; in a chat ``reply`` begins the assistant's message.

    With chat=think the model thinks there first, and ``reply`` is left to it. Raises ValueError if
    the tokenizer merges the answer with the question.
    """
    message: list[int] = []
    if chat:
        head, generation, space = context.chat(before, None if chat is True else chat == "think")
        message, stem = [*continued(context, after), *generation], space + reply.lstrip()
        if chat == "think":
            if not new:
                raise ValueError(
                    "chat=think needs an answer that is written; use chat=direct, or a task that"
                    " writes, such as niah"
                )
            return Frame(head, message, [], new, THINKING)
    else:
        head, stem = [*context.opening, *context.encode(before)], after + reply
    question = continued(context, stem)
    whole = continued(context, stem + answer)
    if whole[: len(question)] != question:
        raise ValueError(
            "the tokenizer merges the question with the answer, so the answer cannot be scored"
        )
    said = whole[len(question) :]
    if context.decode(said).strip() != answer.strip():
        raise ValueError(
            f"the tokenizer cannot write {answer.strip()}:"
            f" it reads back as {context.decode(said)!r}"
        )
    return Frame(head, [*message, *question], said, new)


def grid(depths: int, trials: int) -> Iterator[tuple[float, int, str]]:
    """Yield every depth, the trial, and a name of its own; the depths are evenly spaced."""
    digits = max(2, len(str(depths)))
    for index in range(depths):
        depth = index / (depths - 1) if depths > 1 else 0.5
        for trial in range(trials):
            yield depth, trial, f"depth {depth:.{digits}f} trial {trial}"


def check_new(context: TaskContext, new: int, answers: Sequence[str]) -> None:
    """Raise ValueError where ``new`` tokens cannot hold all of several answers."""
    least = len(continued(context, f" {' '.join(answers)}"))
    if new < least:
        raise ValueError(
            f"new={new} tokens cannot hold {len(answers)} answers, which take {least} or more: give"
            f" new={2 * least}"
        )


def continued(context: TaskContext, text: str) -> list[int]:
    """Return the tokens of a text that continues other text.

    A SentencePiece tokenizer puts a space before any text, so the text is tokenized after an
    anchor that ends a word or a line, and the anchor's tokens are removed. Where a tokenizer
    merges the two, the text is tokenized alone.
    """
    anchor = "x" if text.startswith("\n") else "\n"
    head, whole = context.encode(anchor), context.encode(anchor + text)
    return whole[len(head) :] if whole[: len(head)] == head else context.encode(text)


@cache
def words(*lists: str) -> tuple[str, ...]:
    """Return the words of lists of the package wonderwords (MIT), sorted, each once."""
    folder = files("wonderwords.assets")
    texts = [(folder / f"{name}list.txt").read_text(encoding="utf-8") for name in lists]
    return tuple(sorted({word.strip() for text in texts for word in text.split("\n")} - {""}))


def drawn(kind: Kind, draw: Random) -> str:
    """Draw an adjective-noun pair, a number of seven or ten digits, or a random UUID, as RULER."""
    if kind == "numbers":
        return str(draw.randint(1_000_000, 9_999_999))
    if kind == "ten_digits":
        return str(draw.randint(1_000_000_000, 9_999_999_999))
    if kind == "uuids":
        return str(UUID(int=draw.getrandbits(128), version=4))
    return f"{draw.choice(words('adjective'))}-{draw.choice(words('noun'))}"


def collected(pieces: Iterable[Sequence[int]], room: int) -> list[Sequence[int]]:
    """Return the first pieces with ``room`` tokens or more together; no further one is drawn."""
    first: list[Sequence[int]] = []
    held, rest = 0, iter(pieces)
    while held < room and (piece := next(rest, None)) is not None:
        first.append(piece)
        held += len(piece)
    return first


def sentences(context: TaskContext, room: int) -> list[Sequence[int]]:
    """Return the first sentences of the documents, each after a space, of ``room`` tokens or more.

    White space is a single space, as in RULER. Raises ValueError where the documents have less.
    """
    texts = (" ".join(context.decode(one.tokens).split()) for one in context.documents())
    every = (sentence for text in texts if text for sentence in SENTENCE_END.split(text))
    pieces = collected((continued(context, f" {sentence}") for sentence in every), room)
    if (held := sum(map(len, pieces))) < room:
        raise ValueError(f"the documents have {held} tokens of sentences where {room} are needed")
    return pieces
