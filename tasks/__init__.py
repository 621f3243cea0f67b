"""The tasks: every public module but ``types`` is one, and the file is its registration.

A task defines ``ask(context, lengths, *, seed, options) -> Iterator[Request]``, ``grade(request,
response, context) -> Sample``, ``score(samples) -> Score``, ``VERSION`` and ``METRIC``. Its options
are the keyword-only parameters of ``ask``. The types are exported here.
"""

from typing import Any
from warnings import warn

from tasks import _deprecated
from tasks.types import (
    Divergence,
    DivergenceResponse,
    Document,
    Generate,
    Generated,
    Group,
    GroupResponse,
    Loglikelihood,
    LoglikelihoodResponse,
    Request,
    Response,
    Sample,
    Score,
    TaskContext,
)

__all__ = [
    "Divergence",
    "DivergenceResponse",
    "Document",
    "Generate",
    "Generated",
    "Group",
    "GroupResponse",
    "Loglikelihood",
    "LoglikelihoodResponse",
    "Request",
    "Response",
    "Sample",
    "Score",
    "TaskContext",
]


def __getattr__(name: str) -> Any:
    """Return what earlier versions exported."""
    if name not in ("Answer", "Passage", "Question", "Source"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _deprecated.NAMES:
        old: Any = globals()[_deprecated.NAMES[name]]
    else:
        old = getattr(_deprecated, name)
    warn(f"tasks.{name} is deprecated; see tasks.types", DeprecationWarning, stacklevel=2)
    return old
