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
            for old in KEYWORDS.keys() & named.keys() if named else ():
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


def _divergence(one: Any) -> Any:
    """Return whether a request is for a divergence, or the values of a response."""
    kind = getattr(one, "_kind", None)
    return vars(one).get("values", ()) if kind is None else kind == b"divergence"


class OldKinds(OldNames):
    """Read the attributes of a Question or an Answer; those of other kinds are empty."""

    if not TYPE_CHECKING:
        OLD = {
            "new": lambda self: vars(self).get("max_new_tokens", 0),
            "stop": lambda _: (),
            "parts": lambda _: (),
            "nll": lambda _: (),
            "argmax": lambda self: vars(self).get("tokens", ()),
            "text": lambda _: "",
            "divergence": _divergence,
        }


def Question(
    unit: str,
    length: int,  # it follows from the others
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
    """Build the request that the arguments of earlier versions mean."""
    from tasks.types import Divergence, Generate, Group, Loglikelihood

    common: Any = {"doc_id": unit, "metadata": facts or {}, "repeat": turn, "cell": cell}
    common["graded_by"] = graded_by
    if parts:
        return Group(tuple(parts), **common)
    if new:
        return Generate(tokens, new, tuple(stop), **common)
    return (Divergence if divergence else Loglikelihood)(tokens, start, **common)


def Answer(
    nll: tuple[float, ...],
    argmax: tuple[int, ...],
    text: str = "",
    parts: tuple[ModelResponse, ...] = (),
    divergence: tuple[float, ...] = (),
) -> Response:
    """Build the response that the arguments of earlier versions mean."""
    from tasks.types import DivergenceResponse, Generated, GroupResponse, LoglikelihoodResponse

    if parts:
        return GroupResponse(parts)
    if divergence:
        return DivergenceResponse(divergence)
    return Generated(text, argmax, nll) if text else LoglikelihoodResponse(nll, argmax)
