"""Cut what bands cover of a call at absolute positions: a row has the same bits in any call.

The bits of the CPU's fused kernel depend on how it cuts rows and keys into blocks. So the rows of
a tile meet the same keys in every call that has some of them, and a mask hides what a row does not
see. Rows come in whole ``ROWS``: with fewer the kernel's products have other bits, and those of
functions such as exp depend on whether values come in whole vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from harness.engine.sizes import ROWS
from harness.patching.online_softmax import NOTHING, Merged, widened
from scaling.types import Band

TILE = 256  # rows of a tile, from a multiple of it; its mask has so many rows of all keys


@dataclass(frozen=True, eq=False)
class Tile:
    """What the rows of one tile see of a band: row r the keys ``first[r]`` up to ``end[r]``.

    ``rows`` are in the layout of ``Rows``, ``keys`` positions, from which the bounds count. A row
    in ``unmet`` is not of the band.
    """

    rows: slice
    keys: slice
    first: torch.Tensor
    end: torch.Tensor
    unmet: torch.Tensor | None

    def mask(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Return (rows, keys), 0 where a row sees a key and -inf elsewhere; None if it sees all."""
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
    """The rows of a call, tile by tile, each tile filled up to whole ``ROWS`` by its last row.

    ``positions`` are those of all, ``kept`` the places of the call's own.
    """

    positions: torch.Tensor
    kept: torch.Tensor
    tiles: tuple[tuple[int, int, int], ...]  # first and end position, and the first row's place

    @property
    def filled(self) -> bool:
        """Return whether rows were added."""
        return len(self.kept) < len(self.positions)

    @classmethod
    def of(cls, position: int, rows: int) -> Rows:
        """Lay out so many rows from a position on."""
        end = position + rows
        cuts = [position, *range((position // TILE + 1) * TILE, end, TILE), end]
        filled, kept, tiles, place = [], [], [], 0
        for low, high in pairwise(cuts):
            size = -(-(high - low) // ROWS) * ROWS
            filled.append(torch.arange(low, low + size).clamp(max=high - 1))
            kept.append(torch.arange(place, place + high - low))
            tiles.append((low, high, place))
            place += size
        return cls(torch.cat(filled), torch.cat(kept), tuple(tiles))

    def covered(self, band: Band, window: int | None) -> Iterator[Tile]:
        """Yield the tiles of a band's rows; a query of a sliding layer meets ``window`` keys."""
        end_of_band = band.start + len(band.first)
        for low, high, place in self.tiles:
            start, stop = max(low, band.start), min(high, end_of_band)
            if start < stop:
                a, b = (start - low) // ROWS * ROWS, -(-(stop - low) // ROWS) * ROWS
                found = self._tile(band, slice(place + a, place + b), window)
                if found is not None:
                    yield found

    def _tile(self, band: Band, rows: slice, window: int | None) -> Tile | None:
        here = self.positions[rows]
        origin = int(here[0]) // TILE * TILE
        whole = slice(max(origin - band.start, 0), max(origin + TILE - band.start, 0))
        first, end = band.first[whole], band.end[whole]
        if window is not None:
            at = band.start + whole.start + torch.arange(len(first))
            first = torch.minimum(first.clamp(min=at + 1 - window), end)
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


def attend_tiles(
    merged: Merged,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tiles: Sequence[Tile],
    scale: float,
) -> None:
    """Merge the pairs of the tiles of one band into a softmax, by the CPU's fused kernel.

    ``query`` has the rows of the tiles, ``key`` and ``value`` the keys from the first that is met.
    """
    row, at = tiles[0].rows.start, min(tile.keys.start for tile in tiles)
    width = max(query.shape[-1], value.shape[-1])
    query, key, padded = (widened(part, width) for part in (query, key, value))
    for tile in tiles:
        rows = slice(tile.rows.start - row, tile.rows.stop - row)
        keys = slice(tile.keys.start - at, tile.keys.stop - at)
        found, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query[:, :, rows], key[:, :, keys], padded[:, :, keys],
            attn_mask=tile.mask(merged.lse.dtype), scale=scale,
        )  # fmt: skip
        lse = lse.contiguous()
        if tile.unmet is not None:
            lse.masked_fill_(tile.unmet, NOTHING)
        merged.add(rows, found[..., : value.shape[-1]], lse)
