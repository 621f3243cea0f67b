"""Cut the pairs of a band into squares and rectangles that a GPU's fused attention can take.

A kernel takes a whole rectangle, or a square in which row i sees columns 0..i. Nothing is masked,
nothing is computed twice, and no tensor of queries x keys exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch


@dataclass(frozen=True)
class Piece:
    """Rows and keys, each from up to: ``all`` pairs, or those of a square.

    In a ``lower`` square row i meets keys 0..i, in an ``upper`` one keys i and after.
    """

    rows: tuple[int, int]
    keys: tuple[int, int]
    shape: Literal["all", "lower", "upper"]


def pieces(first: torch.Tensor, end: torch.Tensor) -> list[Piece]:
    """Return pieces that together cover every pair ``first[r] <= key < end[r]`` exactly once.

    ``first`` and ``end`` are int64 ``(rows,)``. Where both bounds are constant or grow by one per
    row, as in every published method, there are few pieces; elsewhere one per row.
    """
    found: list[Piece] = []
    for rows, bounds, moves in _runs(first.tolist(), end.tolist()):
        found += _cut(rows, bounds, moves)
    return found


Run = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


def _runs(first: list[int], end: list[int]) -> Iterator[Run]:
    """Yield runs of rows with pairs, in which each bound is constant or grows by one."""
    met = [a < b for a, b in zip(first, end, strict=True)]
    steps = [
        (b[0] - a[0], b[1] - a[1]) if met[row] and met[row + 1] else None
        for row, (a, b) in enumerate(pairwise(zip(first, end, strict=True)))
    ]
    row, rows = 0, len(first)
    while row < rows:
        if not met[row]:
            row += 1
            continue
        stop, moves = row + 1, (0, 0)
        if stop < rows and steps[row] in ((0, 0), (0, 1), (1, 0), (1, 1)):
            moves = steps[row] or moves
            while stop < rows and steps[stop - 1] == moves:
                stop += 1
        yield (row, stop), (first[row], end[row]), moves
        row = stop


def _cut(rows: tuple[int, int], bounds: tuple[int, int], moves: tuple[int, int]) -> list[Piece]:
    """Cut one run; ``bounds`` are those of its first row."""
    (row, stop), (first, end) = rows, bounds
    size = stop - row
    if size == 1 or moves == (0, 0):
        return [Piece(rows, bounds, "all")]
    if moves == (0, 1):
        square = Piece(rows, (end - 1, end - 1 + size), "lower")
        return [square, Piece(rows, (first, end - 1), "all")] if first < end - 1 else [square]
    if moves == (1, 0):
        square = Piece(rows, (first, first + size), "upper")
        return [square, Piece(rows, (first + size, end), "all")] if first + size < end else [square]
    return _slide(row, stop, first, end)


def _slide(row: int, stop: int, first: int, end: int) -> list[Piece]:
    """Cut a window that moves by one per row, in blocks of its own width."""
    found, width = [], max(1, end - first - 1)
    for at in range(row, stop, width):
        size, left, right = min(width, stop - at), first + at - row, end + at - row
        rows = (at, at + size)
        if size == 1:
            found.append(Piece(rows, (left, right), "all"))
            continue
        found.append(Piece(rows, (right - 1, right - 1 + size), "lower"))
        found.append(Piece(rows, (left, left + size), "upper"))
        if left + size < right - 1:
            found.append(Piece(rows, (left + size, right - 1), "all"))
    return found
