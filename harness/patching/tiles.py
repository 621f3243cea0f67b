"""Compute one softmax over differently rotated query-key pairs, piece by piece.

The rows of a band fall into runs in which each bound of their keys is constant or grows by one. A
GPU's flash operator takes a whole run as a window. Other kernels take whole rectangles of rows and
keys, or squares in which row i attends to keys 0..i; for them, runs are cut into such pieces. On a
CPU the bits of the fused kernel depend on how rows and keys are cut into blocks. There they
are cut into tiles at absolute positions. The rows of a tile get the same keys in every call that
has some of them, and a mask hides what a row does not attend to. Rows come in whole ``ROWS``: with
fewer the kernel's products have other bits, and so have functions such as exp. No tensor of queries
x keys exists; the pieces are merged by their log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor

from ropewalk.harness.engine import sdpa
from ropewalk.harness.engine.memory import ROWS
from ropewalk.scaling.types import Band

TILE = 256  # rows of a tile, from a multiple of it; its mask has so many rows of all keys
SCORES = 1024  # rows and keys of the scores in memory at once, without a fused kernel
NOTHING = -1e30  # log-sum-exp of no pair: two of -inf would be NaN where they are merged
FLASH = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# What computes the softmax of some rows over some keys, and its log-sum-exp: of a query, a key, a
# value, and the piece or tile.
Compute = Callable[[Tensor, Tensor, Tensor, Any], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Piece:
    """Rows and keys of a part, and the window of the keys that each row attends to.

    Row i of R attends to keys i + K - R - ``left`` to i + K - R + ``right`` of K; -1 is no bound.
    ``fresh`` says that no piece before it has any of its rows.
    """

    rows: slice
    keys: slice
    left: int = -1
    right: int = -1
    fresh: bool = False


@dataclass(frozen=True, eq=False)
class Tile:
    """Rows and keys of a part: row r attends to the keys ``first[r]`` to ``end[r]`` of the tile.

    A row in ``unmet`` does not belong to the band.
    """

    rows: slice
    keys: slice
    first: Tensor
    end: Tensor
    unmet: Tensor | None
    fresh = False

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
class Part:
    """What one band covers of one call, cut into pieces or tiles, which count from its first ones.

    ``rows`` are those of the call, ``own`` those of the band, and ``keys`` are positions.
    """

    band: Band
    own: slice | Tensor
    rows: slice
    keys: slice
    cut: Sequence[Piece | Tile]


def within(window: int | None, band: Band, rows: slice) -> tuple[Tensor, Tensor]:
    """Return the first and end key of a band's rows, in a layer with a sliding window in tokens."""
    first, end = band.first[rows], band.end[rows]
    if window is not None:
        at = band.start + rows.start + torch.arange(len(first))
        first = torch.minimum(first.clamp(min=at + 1 - window), end)
    return first, end


def parts_in_pieces(
    bands: Sequence[Band], rows: int, keys: int, window: int | None, *, windows: bool
) -> list[Part]:
    """Return what each band covers of a call whose rows are the last of this many keys.

    ``window`` is that of a sliding layer in tokens: a query attends to the last so many keys only.
    With ``windows`` the pieces are whole runs of rows, marked where they are fresh.
    """
    parts, seen = [], torch.zeros(rows, dtype=torch.bool)
    for band in bands:
        start, stop = max(band.start, keys - rows), min(band.start + len(band.first), keys)
        if start >= stop:
            continue
        own = slice(start - band.start, stop - band.start)
        first, end = within(window, band, own)
        met = end > first
        if not bool(met.any()):
            continue
        least, most = int(first[met].min()), int(end[met].max())
        cut = pieces(first - least, end - least, windows=windows)
        place = slice(start - (keys - rows), stop - (keys - rows))
        for at, piece in enumerate(cut if windows else ()):
            covered = seen[place][piece.rows]
            cut[at] = replace(piece, fresh=not bool(covered.any()))
            covered.fill_(value=True)
        parts.append(Part(band, own, place, slice(least, most), cut))
    return parts


def pieces(first: Tensor, end: Tensor, *, windows: bool) -> list[Piece]:
    """Return pieces that together cover every pair ``first[r] <= key < end[r]`` exactly once.

    ``first`` and ``end`` are int64 ``(rows,)``. Where both bounds are constant or grow by one per
    row, as in every published method, there are few pieces; elsewhere one per row. Without
    ``windows`` each is a rectangle, or a square in which row i attends to keys 0..i (``right`` is
    0) or to keys i and after (``left`` is 0).
    """
    cut = _window if windows else _squares
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


def _window(
    rows: tuple[int, int], bounds: tuple[int, int], moves: tuple[int, int]
) -> Iterator[Piece]:
    (first, end), grown = bounds, rows[1] - rows[0] - 1
    left = end - first - 1 - grown * (1 - moves[1]) if moves[0] else -1
    right = 0 if moves[1] else -1
    yield Piece(slice(*rows), slice(first, end + grown * moves[1]), left, right)


def _squares(
    rows: tuple[int, int], bounds: tuple[int, int], moves: tuple[int, int]
) -> Iterator[Piece]:
    (row, stop), (first, end) = rows, bounds
    if stop - row == 1 or moves == (0, 0):
        yield Piece(slice(row, stop), slice(first, end))
        return
    # A sliding window is cut into blocks of rows of its own width.
    width = max(1, end - first - 1) if moves == (1, 1) else stop - row
    for at in range(row, stop, width):
        size = min(width, stop - at)
        block, left, right = slice(at, at + size), first, end
        if moves[0]:
            left += at - row
        if moves[1]:
            right += at - row
        if size == 1:
            yield Piece(block, slice(left, right))
            continue
        if moves[1]:
            yield Piece(block, slice(right - 1, right - 1 + size), right=0)
            right -= 1
        if moves[0]:
            yield Piece(block, slice(left, left + size), left=0)
            left += size
        if left < right:
            yield Piece(block, slice(left, right))


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a call, tile by tile, each tile padded to whole ``ROWS`` by its last row.

    ``positions`` are those of all rows, ``kept`` the places of the call's own.
    """

    positions: Tensor
    kept: Tensor
    tiles: tuple[tuple[int, int, int], ...]  # first and end position, and the first row's place

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


def parts_in_tiles(bands: Sequence[Band], rows: Rows, window: int | None) -> list[Part]:
    """Return what each band covers of a call's rows, tile by tile."""
    parts = []
    for band in bands:
        tiles = list(_tiles(band, rows, window))
        if tiles:
            low, high = tiles[0].rows.start, tiles[-1].rows.stop
            at, end = min(t.keys.start for t in tiles), max(t.keys.stop for t in tiles)
            own = (rows.positions[low:high] - band.start).clamp(0, len(band.first) - 1)
            cut = [replace(t, rows=_less(t.rows, low), keys=_less(t.keys, at)) for t in tiles]
            parts.append(Part(band, own, slice(low, high), slice(at, end), cut))
    return parts


def _less(span: slice, start: int) -> slice:
    return slice(span.start - start, span.stop - start)


def _tiles(band: Band, rows: Rows, window: int | None) -> Iterator[Tile]:
    """Yield the tiles of a band, by their rows of the call and the positions of their keys."""
    for low, high, place in rows.tiles:
        start, stop = max(low, band.start), min(high, band.start + len(band.first))
        if start >= stop:
            continue
        a, b = (start - low) // ROWS * ROWS, -(-(stop - low) // ROWS) * ROWS
        here = rows.positions[place + a : place + b]
        origin = int(here[0]) // TILE * TILE
        whole = slice(max(origin - band.start, 0), max(origin + TILE - band.start, 0))
        first, end = within(window, band, whole)
        met = end > first
        if not bool(met.any()):
            continue
        keys = slice(int(first[met].min()), int(end[met].max()))
        own = here - band.start - whole.start
        inside = own.clamp(0, len(first) - 1)
        seen = met[inside] & (inside == own)
        first = torch.where(seen, first[inside] - keys.start, 0).int()
        end = torch.where(seen, end[inside], keys.stop).sub(keys.start).int()
        unmet = None if bool(seen.all()) else ~seen
        yield Tile(slice(place + a, place + b), keys, first, end, unmet)


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

    def add(self, rows: slice, values: Tensor, lse: Tensor, *, fresh: bool = False) -> None:
        """Merge the softmax of these rows over keys that were not in it before.

        ``fresh`` says that the rows had no keys at all.
        """
        if fresh:
            self.values[:, :, rows], self.lse[:, :, rows] = values, lse
            return
        before, now = self.values[:, :, rows], self.lse[:, :, rows]
        both = torch.logaddexp(now, lse.to(now.dtype))
        before.mul_((now - both).exp()[..., None])
        before.add_(values * (lse - both).exp()[..., None])
        now.copy_(both)


def attend(
    merged: Merged,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cut: Iterable[Piece | Tile],
    compute: Compute,
) -> None:
    """Merge the pairs of a part into a softmax, by one of the functions below.

    ``query`` is (batch, heads, rows, width), ``key`` and ``value`` (batch, heads, keys, width), or
    with one head that all queries share.
    """
    for piece in cut:
        q, k, v = query[:, :, piece.rows], key[:, :, piece.keys], value[:, :, piece.keys]
        out, lse = compute(q, k, v, piece)
        merged.add(piece.rows, out[..., : merged.values.shape[-1]], lse, fresh=piece.fresh)


def in_windows(scale: float) -> Compute:
    """Return what computes a window, by the flash operator of a GPU."""
    return lambda q, k, v, piece: sdpa.flash(q, k, v, scale, piece.left, piece.right)


def in_tiles(scale: float) -> Compute:
    """Return what computes a tile, of tensors of one width, by the CPU's fused kernel."""

    def compute(query: Tensor, key: Tensor, value: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(query.dtype, torch.float32)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=tile.mask(wide), scale=scale
        )
        lse = lse.contiguous()
        return out, lse if tile.unmet is None else lse.masked_fill_(tile.unmet, NOTHING)

    return compute


def in_squares(scale: float, softcap: float | None = None) -> Compute:
    """Return what computes a square or rectangle, by a GPU's kernel or block by block."""

    def compute(query: Tensor, key: Tensor, value: Tensor, piece: Piece) -> tuple[Tensor, Tensor]:
        upper = piece.left == 0
        causal = upper or piece.right == 0
        if upper:  # upside down and back to front it is a lower one
            query, key, value = (part.flip(2) for part in (query, key, value))
        if softcap is None and sdpa.on_gpu(query.device):
            out, lse = sdpa.on_cuda(query, key, value, scale, causal=causal)
        else:
            out, lse = _unfused(query, key, value, causal, scale, softcap)
        return (out.flip(2), lse.flip(2)) if upper else (out, lse)

    return compute


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
