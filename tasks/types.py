"""Define what a task is given and gives: documents, requests, responses, samples, a score."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, NewType

from pydantic import Field

from ropewalk.tasks._tokens import kept

Fact = str | int | float | list[float] | None
Count = Annotated[int, Field(ge=1)]  # the type of an option
CodeFolder = NewType("CodeFolder", str)  # an option that names a folder whose code is executed


@dataclass(frozen=True)
class Document:
    """One document in the model's own tokens, without any special token.

    ``ends[i]`` is the number of bytes of the document's text, in UTF-8, before token i. There are
    n + 1 numbers for n tokens; None for a tokenizer without offsets.
    """

    name: str
    tokens: Sequence[int]
    ends: Sequence[int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", kept(self.tokens))
        if self.ends is not None and not isinstance(self.ends, array):
            object.__setattr__(self, "ends", array("q", self.ends))


@dataclass(frozen=True)
class TaskContext:
    """The model's tokenizer and window and the documents, before any weights are read.

    - ``encode`` and ``decode`` are the tokenizer's, without special tokens.
    - ``opening`` are the tokens that every window begins with: the begin token, or none.
    - ``documents`` are tokenized on the first call.
    - ``chat`` takes the beginning of a user's message, and whether the model is to think (None: as
      the template has it). It returns three parts of the chat template.
      The first has the tokens up to the end of that beginning, with the begin token. The second has
      the tokens from the end of the message to the assistant's reply. The third is the white space
      before the reply. It raises ValueError if there is no template.
    - ``turns`` takes a user's message and its place in a conversation: first, next or last. It
      returns the tokens of the chat template from the end of the reply before it to the beginning
      of its own reply. It raises ValueError as ``chat`` does.
    - ``tokenizer`` is the tokenizer itself, for a task that another package makes.

    Lengths are in tokens.
    """

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    opening: tuple[int, ...]
    trained_length: int
    documents: Callable[[], Sequence[Document]]
    chat: Callable[..., tuple[list[int], list[int], str]]
    turns: Callable[[str, str], list[int]]
    tokenizer: Any


@dataclass(frozen=True, kw_only=True)
class _Named:
    """The fields that every request has.

    ``doc_id`` names the document or the trial and is the unit of resampling. ``metadata`` is stored
    unchanged in the record. ``repeat`` counts the earlier requests that differ only in these two.
    ``cell`` is the length of the cell that the request belongs to, 0 for the request's own length.
    A longer request is not computed, and its sample has the status too_long. ``graded_by`` names
    what else decides the grade, and is a part of the digest.
    """

    doc_id: str
    metadata: Mapping[str, Fact] = field(default_factory=dict)
    repeat: int = 0
    cell: int = 0
    graded_by: str = ""

    @cached_property
    def digest(self) -> str:
        """A hash of everything that decides the grade, and of no name; the key of its sample."""
        request: Any = self
        digest = sha256(array("q", [request.start]).tobytes())
        digest.update(request.tokens.numbers().tobytes())
        digest.update(b"again" * self.repeat)  # every window of a repetitive text counts
        digest.update(request._kind)
        digest.update(self.graded_by.encode())
        return digest.hexdigest()[:16]

    @property
    def model_requests(self) -> tuple[ModelRequest, ...]:
        """What the model is asked: this request, or the parts of a group."""
        return (self,)  # type: ignore[return-value]

    @property
    def too_long(self) -> bool:
        """Whether it needs more tokens than its cell has."""
        length: int = self.length  # type: ignore[attr-defined]
        return 0 < self.cell < length


@dataclass(frozen=True)
class _Targets(_Named):
    """Tokens of which those from ``start`` on are targets."""

    tokens: Sequence[int]
    start: int
    _kind = b""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", kept(self.tokens))
        if not 0 < self.start < self.length:
            raise ValueError(
                f"{self.doc_id}: the first target {self.start} is outside 1..{self.length - 1}"
            )

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.tokens)


@dataclass(frozen=True)
class Loglikelihood(_Targets):
    """Request the loss of ``tokens[start:]``, given the tokens before each."""


@dataclass(frozen=True)
class Divergence(_Targets):
    """Request how far the prediction of each target is from that of the unpatched model."""

    _kind = b"divergence"


@dataclass(frozen=True)
class Generate(_Named):
    """Request a greedy continuation of ``prompt``, of at most ``max_new_tokens`` tokens.

    Generation ends earlier at an end token of the model, or when a string of ``stop`` occurs.
    ``penalized`` applies the repetition penalty of the model's generation config, as
    ``model.generate`` does unless it is given another.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    penalized: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", kept(self.prompt))
        if not self.prompt or self.max_new_tokens < 1 or not all(self.stop):
            raise ValueError(
                f"{self.doc_id}: a text needs a prompt and at least one new token, and a stop"
                " string may not be empty"
            )

    @property
    def tokens(self) -> Sequence[int]:
        """The input of the model, as other requests call it."""
        return self.prompt

    @property
    def start(self) -> int:
        """The position of the first new token."""
        return len(self.prompt)

    @property
    def length(self) -> int:
        """The number of tokens of the prompt and of the longest continuation."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def _kind(self) -> bytes:
        kind = repr((self.max_new_tokens, self.stop))  # as in versions without penalized
        return f"{kind}penalized".encode() if self.penalized else kind.encode()


@dataclass(frozen=True)
class Group(_Named):
    """Request ``parts`` one by one and grade them together, such as the choices of a document.

    Tokens, start and length are those of the longest part.
    """

    parts: tuple[ModelRequest, ...]

    @cached_property
    def longest(self) -> ModelRequest:
        """The first of the longest parts."""
        return max(self.parts, key=lambda part: part.length)

    @property
    def tokens(self) -> Sequence[int]:
        """The input of the longest part."""
        return self.longest.tokens

    @property
    def start(self) -> int:
        """The position of the first target, or new token, of the longest part."""
        return self.longest.start

    @property
    def length(self) -> int:
        """The length of the longest part."""
        return self.longest.length

    @property
    def _kind(self) -> bytes:
        return self.longest._kind + b"".join(part.digest.encode() for part in self.parts)

    @cached_property
    def model_requests(self) -> tuple[ModelRequest, ...]:
        """The parts, each with a digest of its own in this group."""
        return tuple(
            replace(part, graded_by=f"{self.digest}/{index}")
            for index, part in enumerate(self.parts)
        )


ModelRequest = Loglikelihood | Generate | Divergence  # what the engine answers
Request = ModelRequest | Group  # what a task asks


@dataclass(frozen=True)
class LoglikelihoodResponse:
    """The losses of n targets.

    ``nll`` has the negative log-likelihood of every target in nats, (n,); ``argmax`` the most
    likely token at every target and at the place that would follow the last one, (n + 1,).
    """

    nll: tuple[float, ...]
    argmax: tuple[int, ...]


@dataclass(frozen=True)
class Generated:
    """A text of n tokens: what it says before the stop string, its tokens and their losses.

    ``tokens``, (n,), include the one that ended the text; ``nll``, (n,), is in nats.
    """

    text: str
    tokens: tuple[int, ...]
    nll: tuple[float, ...]


@dataclass(frozen=True)
class DivergenceResponse:
    """The divergence at every target, (n,), in nats.

    This is the Kullback-Leibler divergence of the patched model's prediction from that of the
    unpatched model, with the mean taken over the unpatched model.
    """

    values: tuple[float, ...]


@dataclass(frozen=True)
class GroupResponse:
    """The responses to the parts of a group, in their order."""

    parts: tuple[ModelResponse, ...]


ModelResponse = LoglikelihoodResponse | Generated | DivergenceResponse
Response = ModelResponse | GroupResponse


@dataclass(frozen=True)
class Sample:
    """One graded response: ``value`` is a sum over ``weight`` tokens, or trials."""

    doc_id: str
    value: float
    weight: int
    metadata: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """A task's number for one cell, with its 95 % interval (None where n is too small)."""

    value: float
    low: float | None
    high: float | None
    n: int
