"""Define the types of a task: documents, questions to a language model, answers, a score."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, NewType

from tasks._tokens import kept

Fact = str | int | float | list[float] | None
CodeFolder = NewType("CodeFolder", str)  # an option that names a folder whose code is executed


@dataclass(frozen=True)
class Document:
    """One document in the model's own tokens, without any special token.

    ``ends[i]`` are the bytes of the document's text, in UTF-8, before token i: n + 1 numbers for n
    tokens, None for a tokenizer without offsets.
    """

    name: str
    tokens: Sequence[int]
    ends: Sequence[int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", kept(self.tokens))
        if self.ends is not None and not isinstance(self.ends, array):
            object.__setattr__(self, "ends", array("q", self.ends))


def no_template(_beginning: str) -> tuple[list[int], list[int], str]:
    """Raise ValueError: the tokenizer has no chat template."""
    raise ValueError("the tokenizer has no chat template; leave out chat=true")


@dataclass(frozen=True)
class TaskContext:
    """The model's tokenizer and window and the documents, before any weight is read.

    ``encode`` and ``decode`` are the tokenizer's, without special tokens; ``bos`` is the token
    every window begins with, None where the tokenizer has none; ``passages`` are tokenized on
    the first call. ``chat`` takes the beginning of a user's message and returns the tokens of the
    chat template up to its end, begin token included, those after the message up to the assistant's
    reply, and the white space before the reply; it raises ValueError where there is no template.
    ``tokenizer`` is the tokenizer itself, for a task that another package makes. Lengths are in
    tokens.
    """

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    bos: int | None
    trained_length: int
    passages: Callable[[], Sequence[Document]]
    chat: Callable[[str], tuple[list[int], list[int], str]] = no_template
    tokenizer: Any = field(default=None, compare=False)

    @property
    def opening(self) -> tuple[int, ...]:
        """The tokens every window begins with."""
        return () if self.bos is None else (self.bos,)


@dataclass(frozen=True)
class Request:
    """The smallest thing measured: the loss of tokens, or a text that continues them.

    Of a loss, ``tokens`` is the whole input, and those from ``start`` on are the targets. Of a
    text, ``tokens`` is the prompt, ``start`` its end, ``new`` the largest number of tokens that
    follow; it ends earlier where the model ends it or one of ``stop`` occurs. ``length`` counts
    input and new tokens. With ``divergence`` it asks not for the loss of targets, but for how far
    the prediction of each is from that of the model as it is, without any method. ``unit`` names
    the document or the trial for a reader and is the unit of resampling; ``facts`` go into the
    record as they are. ``turn`` counts the questions before it that are equal in all but their
    names.

    ``cell`` is the length of the cell it belongs to, where that is not its own: a shorter question
    is asked as it is, a longer one is not asked and its sample has the status too_long. ``parts``
    are questions that are answered one by one and graded together, such as the choices of a
    document: tokens, start and length are then those of the longest. ``graded_by`` names what
    else decides the grade, and is a part of the digest.
    """

    unit: str
    length: int
    tokens: Sequence[int]
    start: int
    facts: Mapping[str, Fact] = field(default_factory=dict)
    turn: int = 0
    new: int = 0
    stop: tuple[str, ...] = ()
    cell: int = 0
    parts: tuple[Request, ...] = ()
    graded_by: str = ""
    divergence: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", kept(self.tokens))
        if len(self.tokens) + self.new != self.length:
            room = f" and room for {self.new}" if self.new else ""
            raise ValueError(
                f"{self.unit}: {len(self.tokens)} tokens{room} where length is {self.length}"
            )
        if self.new and (self.start != len(self.tokens) or not all(self.stop) or self.divergence):
            raise ValueError(
                f"{self.unit}: a text starts after the prompt and has no divergence, and no stop"
                " string is empty"
            )
        if not 0 < self.start < self.length:
            raise ValueError(
                f"{self.unit}: the first target {self.start} is outside 1..{self.length - 1}"
            )

    @cached_property
    def digest(self) -> str:
        """Return a hash of what is asked, whatever its name: tokens, targets, the end of a text."""
        asked = sha256(array("q", [self.start]).tobytes())
        asked.update(kept(self.tokens).numbers().tobytes())
        asked.update(b"again" * self.turn)  # equal windows of a text that repeats itself all count
        if self.new:
            asked.update(repr((self.new, self.stop)).encode())
        if self.divergence:
            asked.update(b"divergence")
        for part in self.parts:
            asked.update(part.digest.encode())
        asked.update(self.graded_by.encode())
        return asked.hexdigest()[:16]

    @cached_property
    def asked(self) -> tuple[Request, ...]:
        """Return what the model is asked: this question, or its parts, each with its own digest."""
        own = [
            replace(part, graded_by=f"{self.digest}/{index}")
            for index, part in enumerate(self.parts)
        ]
        return tuple(own) or (self,)

    @property
    def too_long(self) -> bool:
        """Whether it needs more tokens than its cell has."""
        return 0 < self.cell < self.length


@dataclass(frozen=True)
class Response:
    """The model's output for one question with n targets, or a text of n tokens.

    ``nll`` has the negative log-likelihood of every target in nats, (n,); ``argmax`` the most
    likely token at every target and at the place that would follow the last one, (n + 1,).
    Of a text, ``argmax`` has its tokens, (n,), the one that ended it included, ``nll`` their
    losses, and ``text`` what they say before the stop string. Of a divergence, ``divergence`` has
    that at every target, (n,): the Kullback-Leibler divergence, in nats, of the prediction asked
    about from that of the model as it is, the mean being over the latter. Of a question with parts,
    ``parts`` has the answer to each. What is not asked for is empty.
    """

    nll: tuple[float, ...]
    argmax: tuple[int, ...]
    text: str = ""
    parts: tuple[Response, ...] = ()
    divergence: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One graded answer: ``value`` summed over ``weight`` things (tokens, trials)."""

    unit: str
    value: float
    weight: int
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """A task's number for one cell, with its 95 % interval (None where n is too small)."""

    value: float
    low: float | None
    high: float | None
    n: int
