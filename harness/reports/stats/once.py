"""Several reports of one frame compute the same: inside ``shared`` it is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar, cast

import pandas as pd

T = TypeVar("T")
_found: ContextVar[dict[Any, Any] | None] = ContextVar("found", default=None)


@contextmanager
def shared() -> Iterator[None]:
    """Keep what ``once`` functions return of a frame until the end; no report changes its frame."""
    token = _found.set({} if _found.get() is None else _found.get())
    try:
        yield
    finally:
        _found.reset(token)


def once(make: Callable[[pd.DataFrame], T]) -> Callable[[pd.DataFrame], T]:
    """Compute a function of a frame once inside ``shared``; a table is returned as a copy."""

    @wraps(make)
    def made(frame: pd.DataFrame) -> T:
        known = _found.get()
        if known is None:
            return make(frame)
        at = make, id(frame)
        if at not in known:
            known[at] = frame, make(frame)  # the frame is kept, so that no other has its id
        result: Any = known[at][1]
        if isinstance(result, pd.DataFrame):
            result = result.copy()
        return cast(T, result)

    return made
