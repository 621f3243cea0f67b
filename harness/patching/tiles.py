"""Compute one softmax over differently rotated query-key pairs, part by part.

The rows of a band fall into runs in which each bound of their keys is constant or grows by one. A
GPU's flash operator takes a whole run as a window. Other kernels take whole rectangles of rows and
keys, or squares in which row i attends to keys 0..i; for them, runs are cut into such pieces. On a
CPU the bits of the fused kernel depend on how rows and keys are cut into blocks. There they
are cut into tiles at absolute positions. The rows of a tile get the same keys in every call that
has some of them, and a mask hides what a row does not attend to. Rows come in whole ``ROWS``: with
fewer the kernel's products have other bits, and so have functions such as exp. No tensor of queries
x keys exists; the parts are merged by their log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor, nn

from ropewalk.harness.engine import sdpa
from ropewalk.harness.engine.memory import ROWS
from ropewalk.scaling.types import Band

TILE = 256  # rows of a tile, from a multiple of it; its mask has so many rows of all keys
SCORES = 1024  # rows and keys of the scores in memory at once, without a fused kernel
NOTHING = -1e30  # log-sum-exp of no pair: two of -inf would be NaN where they are merged
FLASH = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass
class Merged:
    """The running softmax of some rows: values ``(batch, heads, rows, width)`` and log-sum-exp.

    Both are float32 or wider. Rows without a pair are zero, and their log-sum-exp is NOTHING.
    """

    values: Tensor
    lse: Tensor

    @staticmethod
    def empty(query: Tensor, width: int) -> Merged:
        """Return the softmax over no keys, for the rows of ``(batch, heads, rows, …)``."""
        dtype = torch.promote_types(query.dtype, torch.float32)
        values = query.new_zeros((*query.shape[:3], width), dtype=dtype)
        return Merged(values, query.new_full(query.shape[:3], NOTHING, dtype=dtype))

    def of(self, rows: slice | Tensor) -> Merged:
        """Return some rows; a slice is a view, and additions to it change this softmax."""
        return Merged(self.values[:, :, rows], self.lse[:, :, rows])

    def add(self, rows: slice, values: Tensor, lse: Tensor) -> None:
        """Merge the softmax of these rows over keys that were not in it before."""
        before, now = self.values[:, :, rows], self.lse[:, :, rows]
        both = torch.logaddexp(now, lse.to(now.dtype))
        before.mul_((now - both).exp()[..., None])
        before.add_(values * (lse - both).exp()[..., None])
        now.copy_(both)


def widened(part: Tensor, width: int) -> Tensor:
    """Pad channels with zeros; a tensor that is wide enough stays a view."""
    missing = width - part.shape[-1]
    return nn.functional.pad(part, (0, missing)) if missing else part


@dataclass(frozen=True)
class Piece:
    """Rows and keys, each as (start, stop), and the window of the keys that each row attends to.

    Row i of R attends to keys i + K - R - ``left`` to i + K - R + ``right`` of K; -1 is no bound.
    ``fresh`` says that no piece before it has any of its rows.
    """

    rows: tuple[int, int]
    keys: tuple[int, int]
    left: int = -1
    right: int = -1
    fresh: bool = False


def pieces(first: Tensor, end: Tensor, *, windows: bool) -> list[Piece]:
    """Return pieces that together cover every pair ``first[r] <= key < end[r]`` exactly once.

    ``first`` and ``end`` are int64 ``(rows,)``. Where both bounds are constant or grow by one per
    row, as in every published method, there are few pieces; elsewhere one per row. Without
    ``windows`` each is a rectangle, or a square in which row i attends to keys 0..i (``right`` is
    0) or to keys i and after (``left`` is 0).
    """
    cut = _run if windows else _cut
    return [piece for run in _runs(first, end) for piece in cut(*run)]


def _runs(
    first: Tensor, end: Tensor
) -> Iterator[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]:
    """Yield runs of rows in which each bound is constant or grows by one.

    A run is its rows (start, stop), the bounds of its first row, and how much the bounds grow.
    """
    met, starts, ends = end > first, first.diff(), end.diff()
    grows = (starts | ends | 1 == 1) & met[1:] & met[:-1]
    kinds = [*torch.where(grows, 2 * starts + ends, -1).tolist(), -2]
    row, stop = 0, 0
    for kind, same in groupby(kinds):
        stop += len(list(same))
        while row < stop:
            after = row + 1 if kind < 0 else stop + 1
            if met[row]:
                yield (row, after), (int(first[row]), int(end[row])), divmod(max(kind, 0), 2)
            row = after


def _run(rows: tuple[int, int], bounds: tuple[int, int], moves: tuple[int, int]) -> Iterator[Piece]:
    (first, end), grown = bounds, rows[1] - rows[0] - 1
    left = end - first - 1 - grown * (1 - moves[1]) if moves[0] else -1
    yield Piece(rows, (first, end + grown * moves[1]), left, 0 if moves[1] else -1)


def _cut(rows: tuple[int, int], bounds: tuple[int, int], moves: tuple[int, int]) -> list[Piece]:
    (row, stop), (first, end) = rows, bounds
    size = stop - row
    if size == 1 or moves == (0, 0):
        return [Piece(rows, bounds)]
    if moves == (0, 1):
        square = Piece(rows, (end - 1, end - 1 + size), right=0)
        return [square, Piece(rows, (first, end - 1))] if first < end - 1 else [square]
    if moves == (1, 0):
        square = Piece(rows, (first, first + size), left=0)
        return [square, Piece(rows, (first + size, end))] if first + size < end else [square]
    cut, width = [], max(1, end - first - 1)  # a sliding window: blocks of its own width
    for at in range(row, stop, width):
        size, left, right = min(width, stop - at), first + at - row, end + at - row
        block = (at, at + size)
        if size == 1:
            cut.append(Piece(block, (left, right)))
            continue
        cut.append(Piece(block, (right - 1, right - 1 + size), right=0))
        cut.append(Piece(block, (left, left + size), left=0))
        if left + size < right - 1:
            cut.append(Piece(block, (left + size, right - 1)))
    return cut


def attend_runs(
    merged: Merged, query: Tensor, key: Tensor, value: Tensor, runs: Iterable[Piece], scale: float
) -> None:
    """Merge the pairs of some runs into a softmax, by the flash operator of a GPU.

    ``key`` and ``value`` have a head for each of the query's, or one that all of them share.
    """
    wide = max(query.shape[-1], value.shape[-1])
    width = -(-wide // sdpa.WHOLE_CHANNELS) * sdpa.WHOLE_CHANNELS
    for run in runs:
        rows, keys = slice(*run.rows), slice(*run.keys)
        q, k, v = query[:, :, rows], key[:, :, keys], value[:, :, keys]
        q, k, v = (widened(part, width) for part in (q, k, v))
        out, lse = sdpa.flash(q, k, v, scale, run.left, run.right)
        out = out[..., : value.shape[-1]]
        if run.fresh:
            merged.values[:, :, rows], merged.lse[:, :, rows] = out, lse
        else:
            merged.add(rows, out, lse)


def attend(
    merged: Merged,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cut: Iterable[Piece],
    scale: float,
    softcap: float | None,
) -> None:
    """Merge the pairs of some pieces into a softmax.

    ``query`` is (batch, heads, rows, width), ``key`` and ``value`` (batch, heads, keys, width), or
    with one head that all queries share.
    """
    for piece in cut:
        rows, keys = slice(*piece.rows), slice(*piece.keys)
        q, k, v = query[:, :, rows], key[:, :, keys], value[:, :, keys]
        upper = piece.left == 0
        causal = upper or piece.right == 0
        if upper:  # upside down and back to front it is a lower one
            q, k, v = (part.flip(2) for part in (q, k, v))
        if softcap is None and sdpa.on_gpu(query.device):
            width = max(query.shape[-1], value.shape[-1])
            q, k, v = (widened(part, width) for part in (q, k, v))
            out, lse = sdpa.on_cuda(q, k, v, scale, causal=causal)
            out = out[..., : value.shape[-1]]
        else:
            out, lse = _unfused(q, k, v, causal, scale, softcap)
        if upper:
            out, lse = out.flip(2), lse.flip(2)
        merged.add(rows, out, lse)


def _unfused(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Compute scores block by block: for soft-capping, and devices without a fused kernel."""
    merged = Merged.empty(query, value.shape[-1])
    for row in range(0, query.shape[2], SCORES):
        rows = slice(row, row + SCORES)
        for at in range(0, min(key.shape[2], row + SCORES) if causal else key.shape[2], SCORES):
            keys = slice(at, at + SCORES)
            scores = (query[:, :, rows] @ key[:, :, keys].mT).to(merged.lse.dtype) * scale
            if softcap is not None:
                scores = softcap * (scores / softcap).tanh()
            if causal:
                visible = torch.ones_like(scores, dtype=torch.bool).tril(row - at)
                scores = scores.masked_fill(~visible, -torch.inf)
            lse = scores.logsumexp(-1)
            out = (scores - lse[..., None]).exp().to(value.dtype) @ value[:, :, keys]
            merged.add(rows, out, lse)
    return merged.values, merged.lse


@dataclass(frozen=True, eq=False)
class Tile:
    """What the rows of one tile attend to in a band: row r to the keys ``first[r]`` to ``end[r]``.

    ``rows`` are in the layout of ``Rows``, ``keys`` positions, from which the bounds count. A row
    in ``unmet`` does not belong to the band.
    """

    rows: slice
    keys: slice
    first: Tensor
    end: Tensor
    unmet: Tensor | None

    def mask(self, dtype: torch.dtype) -> Tensor | None:
        """Return (rows, keys), 0 for a visible key and -inf elsewhere; None if all are visible."""
        count = self.keys.stop - self.keys.start
        left, right = int(self.first.max()), int(self.end.min())
        if left == 0 and right == count:
            return None
        mask = torch.zeros(len(self.first), count, dtype=dtype)
        place = torch.arange(count, dtype=torch.int32)
        mask[:, :left].masked_fill_(place[:left] < self.first[:, None], -torch.inf)
        mask[:, right:].masked_fill_(place[right:] >= self.end[:, None], -torch.inf)
        return mask


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a call, tile by tile, each tile padded to whole ``ROWS`` by its last row.

    ``positions`` are those of all rows, ``kept`` the places of the call's own.
    """

    positions: Tensor
    kept: Tensor
    tiles: tuple[tuple[int, int, int], ...]  # first and end position, and the first row's place

    @property
    def padded(self) -> bool:
        """Whether rows were added."""
        return len(self.kept) < len(self.positions)

    @classmethod
    def of(cls, position: int, rows: int) -> Rows:
        """Lay out so many rows from a position on."""
        end = position + rows
        cuts = [position, *range((position // TILE + 1) * TILE, end, TILE), end]
        padded, kept, tiles, place = [], [], [], 0
        for low, high in pairwise(cuts):
            size = -(-(high - low) // ROWS) * ROWS
            padded.append(torch.arange(low, low + size).clamp(max=high - 1))
            kept.append(torch.arange(place, place + high - low))
            tiles.append((low, high, place))
            place += size
        return cls(torch.cat(padded), torch.cat(kept), tuple(tiles))

    def covered(self, band: Band, window: int | None) -> Iterator[Tile]:
        """Yield the tiles of a band; a query of a sliding layer attends to ``window`` keys."""
        end_of_band = band.start + len(band.first)
        for low, high, place in self.tiles:
            start, stop = max(low, band.start), min(high, end_of_band)
            if start < stop:
                a, b = (start - low) // ROWS * ROWS, -(-(stop - low) // ROWS) * ROWS
                tile = self._tile(band, slice(place + a, place + b), window)
                if tile is not None:
                    yield tile

    def _tile(self, band: Band, rows: slice, window: int | None) -> Tile | None:
        here = self.positions[rows]
        origin = int(here[0]) // TILE * TILE
        whole = slice(max(origin - band.start, 0), max(origin + TILE - band.start, 0))
        first, end = within(window, band, whole)
        met = end > first
        if not bool(met.any()):
            return None
        keys = slice(int(first[met].min()), int(end[met].max()))
        own = here - band.start - whole.start
        inside = own.clamp(0, len(first) - 1)
        seen = met[inside] & (inside == own)
        first = torch.where(seen, first[inside] - keys.start, 0).int()
        end = torch.where(seen, end[inside], keys.stop).sub(keys.start).int()
        return Tile(rows, keys, first, end, None if bool(seen.all()) else ~seen)


def within(window: int | None, band: Band, rows: slice) -> tuple[Tensor, Tensor]:
    """Return the first and end key of a band's rows, in a layer with a sliding window in tokens."""
    first, end = band.first[rows], band.end[rows]
    if window is not None:
        at = band.start + rows.start + torch.arange(len(first))
        first = torch.minimum(first.clamp(min=at + 1 - window), end)
    return first, end


def attend_tiles(
    merged: Merged, query: Tensor, key: Tensor, value: Tensor, tiles: Sequence[Tile], scale: float
) -> None:
    """Merge the pairs of the tiles of one band into a softmax, by the CPU's fused kernel.

    ``query`` has the rows of the tiles, ``key`` and ``value`` the keys from the first one attended.
    """
    row, at = tiles[0].rows.start, min(tile.keys.start for tile in tiles)
    width = max(query.shape[-1], value.shape[-1])
    query, key, padded = (widened(part, width) for part in (query, key, value))
    for tile in tiles:
        rows = slice(tile.rows.start - row, tile.rows.stop - row)
        keys = slice(tile.keys.start - at, tile.keys.stop - at)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query[:, :, rows],
            key[:, :, keys],
            padded[:, :, keys],
            attn_mask=tile.mask(merged.lse.dtype),
            scale=scale,
        )
        lse = lse.contiguous()
        if tile.unmet is not None:
            lse.masked_fill_(tile.unmet, NOTHING)
        merged.add(rows, out[..., : value.shape[-1]], lse)
