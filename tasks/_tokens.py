"""Tokens in four bytes each: a window on a text holds no copy of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, overload


class Tokens(Sequence[int]):
    """Tokens that never change: those of ``head``, then a run of an array that others may share.

    Equal to the tuple of the same tokens, hashed and ordered like it; a slice is a view. Raises
    OverflowError for what is no token of 31 bits.
    """

    __slots__ = ("_hash", "body", "head")
    body: memoryview[int]
    head: tuple[int, ...]

    def __init__(self, tokens: Iterable[int] = (), head: Sequence[int] = ()) -> None:
        shared = isinstance(tokens, Tokens) and not tokens.head
        self.body = (
            tokens.body if shared else memoryview(array("i", tokens)).toreadonly()  # type: ignore[attr-defined]
        )
        self.head = tuple(head)
        self._hash: int | None = None

    def __len__(self) -> int:
        return len(self.head) + len(self.body)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Tokens: ...
    def __getitem__(self, index: int | slice) -> int | Tokens:
        before = len(self.head)
        if not isinstance(index, slice):
            place = range(len(self))[index]
            return self.head[place] if place < before else self.body[place - before]
        first, end, step = index.indices(len(self))
        if step != 1:
            return Tokens(list(self)[index])
        part = Tokens(head=self.head[first:end])
        part.body = self.body[max(0, first - before) : max(0, end - before)]
        return part

    def __iter__(self) -> Iterator[int]:
        return chain(self.head, self.body.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Tokens) and len(self.head) == len(other.head):
            return self.head == other.head and self.body == other.body
        if isinstance(other, Tokens | tuple | list):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self))
        return self._hash

    def numbers(self) -> Any:
        """Return them as an array of NumPy's, int64 (n,)."""
        import numpy as np

        return np.concatenate([np.asarray(part, np.int64) for part in (self.head, self.body)])

    def common(self, other: Tokens) -> int:
        """Return how many tokens both begin with."""
        import numpy as np

        before = len(self.head)
        if self.head == other.head:
            one, two = np.asarray(self.body), np.asarray(other.body)
        else:
            before, one, two = 0, self.numbers(), other.numbers()
        size = min(len(one), len(two))
        unlike = one[:size] != two[:size]
        place = int(unlike.argmax()) if size else 0
        return before + (place if size and unlike[place] else size)

    def __lt__(self, other: Tokens) -> bool:
        place = self.common(other)
        if place == min(len(self), len(other)):
            return len(self) < len(other)
        return self[place] < other[place]

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokens, (array("i", self.body), self.head)

    def __repr__(self) -> str:
        return f"Tokens({list(self)})"


def kept(tokens: Sequence[int]) -> Tokens:
    """Return tokens as they are kept."""
    return tokens if isinstance(tokens, Tokens) else Tokens(tokens)
