"""Keep task files of earlier versions running: Question, Answer and their attributes.

The digests of what they build are those of earlier versions, so stored samples stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.types import ModelRequest, ModelResponse, Request, Response

KEYWORDS = {
    "unit": "doc_id", "facts": "metadata", "turn": "repeat", "new": "max_new_tokens",
    "passages": "documents",
}  # fmt: skip
NAMES = {"Passage": "Document", "Source": "TaskContext"}


class _OldKeywords(type):
    """Construct, and ``dataclasses.replace``, by old names too."""

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **named: Any) -> Any:
            for old in KEYWORDS.keys() & named.keys():
                named[KEYWORDS[old]] = named.pop(old)
            return super().__call__(*args, **named)


class OldNames(metaclass=_OldKeywords):
    """Read attributes by their old names."""

    if not TYPE_CHECKING:
        OLD: Mapping[str, Any] = {}

        def __getattr__(self, name: str) -> Any:
            if name in KEYWORDS and name != "new":
                return getattr(self, KEYWORDS[name])
            if name in self.OLD:
                return self.OLD[name](self)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class OldRequest(OldNames):
    """Read the attributes of a Question; those of another kind of request are empty."""

    if not TYPE_CHECKING:
        OLD = {
            "new": lambda self: vars(self).get("max_new_tokens", 0),
            "stop": lambda _: (),
            "parts": lambda _: (),
            "divergence": lambda self: self._kind == b"divergence",
        }


class OldResponse(OldNames):
    """Read the attributes of an Answer; those of another kind of response are empty."""

    if not TYPE_CHECKING:
        OLD = {
            "nll": lambda _: (),
            "argmax": lambda self: vars(self).get("tokens", ()),
            "text": lambda _: "",
            "parts": lambda _: (),
            "divergence": lambda self: vars(self).get("values", ()),
        }


class Question:
    """Build the request that the arguments of earlier versions mean."""

    def __new__(  # type: ignore[misc]
        cls,
        unit: str,
        length: int,
        tokens: Sequence[int],
        start: int,
        facts: Mapping[str, Any] | None = None,
        turn: int = 0,
        new: int = 0,
        stop: tuple[str, ...] = (),
        cell: int = 0,
        parts: tuple[ModelRequest, ...] = (),
        graded_by: str = "",
        divergence: bool = False,
    ) -> Request:
        from tasks.types import Divergence, Generate, Group, Loglikelihood

        if len(tokens) + new != length:
            raise ValueError(f"{unit}: {len(tokens)} + {new} tokens where length is {length}")
        if new and (start != len(tokens) or divergence):
            raise ValueError(f"{unit}: a text starts after the prompt and has no divergence")
        common: Any = {"doc_id": unit, "metadata": facts or {}, "repeat": turn, "cell": cell}
        common["graded_by"] = graded_by
        if parts:
            return Group(tuple(parts), **common)
        if new:
            return Generate(tokens, new, tuple(stop), **common)
        return (Divergence if divergence else Loglikelihood)(tokens, start, **common)


class Answer:
    """Build the response that the arguments of earlier versions mean."""

    def __new__(  # type: ignore[misc]
        cls,
        nll: tuple[float, ...],
        argmax: tuple[int, ...],
        text: str = "",
        parts: tuple[ModelResponse, ...] = (),
        divergence: tuple[float, ...] = (),
    ) -> Response:
        from tasks import types

        if parts:
            return types.GroupResponse(parts)
        if divergence:
            return types.DivergenceResponse(divergence)
        return (
            types.Generated(text, argmax, nll) if text else types.LoglikelihoodResponse(nll, argmax)
        )
