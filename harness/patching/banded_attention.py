"""An attention whose query-key pairs are rotated band by band, for keys cached unrotated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ropewalk.harness.engine import sdpa
from ropewalk.harness.engine.memory import Moved
from ropewalk.harness.patching.layout import Layout, no_mask
from ropewalk.harness.patching.tiles import (
    FLASH,
    Merged,
    Part,
    Rows,
    attend,
    in_squares,
    in_tiles,
    in_windows,
    parts_in_pieces,
    parts_in_tiles,
)
from ropewalk.scaling.types import Band, Bands, by_distance

KEPT_BANDS = 8  # rotated keys of a text are kept up to so many bands
KEPT_TABLES = 16  # cos and sin are kept from layer to layer up to so many, each of the whole length
SLAB = 8192  # rows that heads with positions of their own rotate at once
KEPT_CALLS = 8192  # the parts of so many calls are kept; a layer of two million tokens has as many


def kept_of(bands: Bands) -> Moved:
    """Return what the attention of these bands keeps; without kept tables one is made at a time."""
    tables = _table_count(bands)
    kept = tables if tables <= KEPT_TABLES else 1
    rotated = len(bands.bands) if len(bands.bands) <= KEPT_BANDS else 0
    return Moved(kept, rotated, bands.by_head)


def _table_count(bands: Bands) -> float:
    """Return how many tables of cos and sin there are, each of all queries and keys.

    A band has one, or one for each column of positions that heads differ in.
    """
    rows = sum(
        (len(band.query) + len(band.key)) * (band.query.shape[1] if band.by_head else 1)
        for band in bands.bands
    )
    return rows / (2 * bands.length)


class BandedAttention:
    """The attention of transformers' interface, for keys that are cached unrotated.

    ``plain`` says that it takes the place of a plain causal one.
    """

    def __init__(
        self, bands: Bands, layouts: Mapping[nn.Module, Layout | None], *, plain: bool = False
    ) -> None:
        self.bands, self.layouts, self.plain = bands, layouts, plain
        self._unmoved = by_distance(bands.length, bands.last, 0)
        self._calls: dict[Any, tuple[Rows | None, list[Part]]] = {}
        self._keeps_tables = _table_count(bands) <= KEPT_TABLES
        self._made: dict[Any, Any] = {}  # on devices: a copy to one waits for its work
        self._dropped = 0  # keys that the caches of sliding layers no longer have

    @property
    def kernel(self) -> sdpa.Kernel | None:
        """What an engine may call in its place, for rows at any positions.

        On a CPU a row has the same bits in every call. It is no attribute: in a cycle of references
        the tables would stay on a GPU until the next garbage collection.
        """
        return self.attend if self.plain else None

    @property
    def copies(self) -> int:
        """The keys and values of a token that a text keeps, as in ``Moved``; 0 for few texts."""
        return kept_of(self.bands).copies if self.plain else 0

    @property
    def views(self) -> list[BandView]:
        """The bands, for rows of many texts at once; none where heads or layers differ."""
        if not self.copies or None in self.layouts.values():
            return []
        modules: dict[Any, nn.Module] = {module.layer_idx: module for module in self.layouts}
        return [BandView(self, band, modules) for band in self.bands.bands]

    def mask(self, *, kv_offset: int = 0, **named: Any) -> None:
        """Return no mask; note the position of the first key of sliding layers."""
        no_mask(kv_offset=kv_offset, **named)
        if named.get("local_size") is not None:
            self._dropped = int(kv_offset)

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *_: Any,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        sliding_window: int | None = None,
        **__: Any,
    ) -> tuple[Tensor, None]:
        """Return (batch, rows, heads, width); the rows are the last positions of the keys."""
        batch, heads, rows = query.shape[:3]
        dropped = 0 if sliding_window is None else self._dropped
        position = key.shape[2] + dropped - rows
        merged = self._merged(
            module, query, key, value, position, scaling, softcap, sliding_window, dropped
        )
        if s_aux is not None:  # one logit per head; its value is zero
            sinks = s_aux.reshape(-1, merged.lse.shape[1], 1).repeat(batch, 1, rows)
            merged.add(slice(None), torch.zeros_like(merged.values), sinks)
        out = merged.values.reshape(batch, heads, rows, -1).transpose(1, 2)
        return out.to(query.dtype).contiguous(), None

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        position: int,
        scale: float | None,
        kept: sdpa.Kept | None = None,
    ) -> Tensor:
        """Return (1, heads, rows, width), as an engine's ``Kernel`` does."""
        merged = self._merged(module, query, key, value, position, scale, kept=kept)
        return merged.values.reshape(*query.shape[:3], -1).to(query.dtype)

    def _merged(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        position: int,
        scaling: float | None,
        softcap: float | None = None,
        window: int | None = None,
        dropped: int = 0,
        kept: sdpa.Kept | None = None,
    ) -> Merged:
        """Return the softmax of rows from ``position`` on; ``dropped`` keys are absent."""
        rotated, scale = self.layouts[module] is not None, scaling or query.shape[-1] ** -0.5
        fused = sdpa.blocked(query.device) and softcap is None and query.dtype in FLASH
        flash = softcap is None and sdpa.flash_windows(query)
        end = position + query.shape[2]  # of the keys that are there
        rows, parts = self._parts(position, query.shape[2], window, rotated, fused, flash)
        padded = rows is not None and len(rows.kept) < len(rows.positions)
        if window is None and self._scales(module.layer_idx, rotated):
            query = self._scaled(query, slice(position, end))
        # Heads of keys are folded into the batch, so that queries sharing one share it as a view.
        groups, sharing = key.shape[1], query.shape[1] // key.shape[1]
        query = query.reshape(-1, sharing, *query.shape[2:])
        key, value = (x.flatten(0, 1)[:, None] for x in (key, value))
        if rows is not None and padded:
            query = query.index_select(2, rows.positions - position)
        if fused:
            compute = in_tiles(scale)
        else:
            compute = in_windows(scale) if flash else in_squares(scale, softcap)
        merged = Merged.empty(query, value.shape[-1])
        for part in parts:
            q, v = query[:, :, part.rows], _present(value, part.keys, dropped)
            if rotated:
                q = self._rotated(module, groups, part.band, part.own, q, query=True)
            k = self._keys(module, groups, part, key, end, dropped, kept)
            heads = k.shape[1] if flash else sharing  # the flash operator wants no copies of keys
            k, v = (x.expand(-1, heads, -1, -1) for x in (k, v))
            if fused:
                q, k, v = sdpa.widened(q, k, v, whole=1)
            attend(merged.of(part.rows), q, k, v, part.cut, compute)
        return merged.of(rows.kept) if rows is not None and padded else merged

    def _parts(
        self, position: int, rows: int, window: int | None, rotated: bool, fused: bool, flash: bool
    ) -> tuple[Rows | None, list[Part]]:
        """Return the parts of a call, equal in all layers of a kind; and its rows in tiles."""
        if position + rows > self.bands.length:
            raise ValueError(
                f"the bands are for {self.bands.length} tokens, the context has {position + rows}"
            )
        call = (position, rows, window, rotated, fused, flash)
        if call not in self._calls:
            if len(self._calls) == KEPT_CALLS:
                del self._calls[next(iter(self._calls))]
            bands = self.bands.bands if rotated else (self._unmoved,)
            if fused:
                tiled = Rows.of(position, rows)
                self._calls[call] = tiled, parts_in_tiles(bands, tiled, window)
            else:
                cut = parts_in_pieces(bands, rows, position + rows, window, windows=flash)
                self._calls[call] = None, cut
        return self._calls[call]

    def _scales(self, layer: int, rotated: bool) -> bool:
        """Return whether the queries of a full-attention layer are scaled."""
        if self.bands.query_scale is None:
            return False
        if self.bands.scaled_in == "unrotated":
            return not rotated
        return self.bands.scaled_in == "all" or layer >= int(self.bands.scaled_in)

    def _scaled(self, query: Tensor, positions: slice | Tensor) -> Tensor:
        """Scale queries; a device gets the scales of all once, for every layer and chunk."""
        assert self.bands.query_scale is not None
        wide = torch.promote_types(query.dtype, torch.float32)  # a device may lack float64
        whole = self.bands.query_scale
        scales: Tensor = self._once((wide, query.device), lambda: whole.to(wide).to(query.device))
        return (query * scales[positions, None]).to(query.dtype)

    def _keys(
        self,
        module: Any,
        groups: int,
        part: Part,
        key: Tensor,
        end: int,
        dropped: int,
        kept: sdpa.Kept | None,
    ) -> Tensor:
        """Return a part's keys, rotated; those before ``end`` are kept, others are zero."""
        band, keys = part.band, part.keys
        rotated = self.layouts[module] is not None
        if not rotated or kept is None or len(self.bands.bands) > KEPT_BANDS:
            present = _present(key, keys, dropped)
            if not rotated:
                return present
            return self._rotated(module, groups, band, keys, present, query=False)
        # Rotated keys of this band, and from where to where they are.
        whole, low, high = kept.parts.get(band, (None, 0, 0))
        if not low <= keys.start <= high:
            low = high = keys.start
        new = slice(high, max(high, min(keys.stop, end)))
        made = self._rotated(module, groups, band, new, key[:, :, new], query=False)
        if whole is None:
            whole = made.new_zeros((*made.shape[:2], kept.rows, key.shape[3]))
        whole[:, :, new] = made
        kept.parts[band] = whole, low, new.stop
        found: Tensor = whole[:, :, keys]
        return found

    def _rotated(
        self,
        module: Any,
        groups: int,
        band: Band,
        rows: slice | Tensor,
        x: Tensor,
        *,
        query: bool,
    ) -> Tensor:
        """Return rotated queries ``(groups, sharing, rows, width)`` or keys ``(groups, 1, …)``.

        Where positions differ between the heads of a group, each head gets a key of its own.
        """
        layout = self.layouts[module]
        assert layout is not None
        rotate = self._there(layout, x.device).rotate
        if not band.by_head:
            rotated: Tensor = rotate(x, *self._table(layout, band, rows, x.device, query))
            return rotated
        index: Tensor = self._once(
            (layout, band, module.layer_idx, x.device),
            lambda: _gathered(layout, band, module.layer_idx).to(x.device),
        )
        sharing, width = len(index) // x.shape[-1] // groups, x.shape[-1]
        x = x.reshape(len(x) // groups, groups, *x.shape[1:])  # of no rows, too
        out = x.new_empty((*x.shape[:2], sharing, *x.shape[3:]))
        for at in range(0, x.shape[3], SLAB):
            slab = slice(at, min(at + SLAB, x.shape[3]))
            some: slice | Tensor
            if isinstance(rows, Tensor):
                some = rows[slab]
            else:
                some = slice(rows.start + slab.start, rows.start + slab.stop)
            tables = self._table(layout, band, some, x.device, query)
            by_head = (t.flatten(1).index_select(1, index) for t in tables)
            cos, sin = (t.view(-1, groups, sharing, width).movedim(0, 2) for t in by_head)
            out[..., slab, :] = rotate(x[..., slab, :], cos, sin)
        return out.flatten(0, 1)

    def _once(self, name: Any, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _there(self, what: Any, device: torch.device) -> Any:
        """Return a tensor, or a layout or frequencies, on a device."""

        def copy() -> Any:
            if isinstance(what, Tensor):
                return what.to(device)
            tensors = {n: x.to(device) for n, x in vars(what).items() if isinstance(x, Tensor)}
            return replace(what, **tensors)

        return self._once((what, device), copy)

    def _table(
        self,
        layout: Layout,
        band: Band,
        rows: slice | Tensor,
        device: torch.device,
        query: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return cos and sin of some rows, ``(rows, head_dim)``; by column where heads differ."""
        exact = device if device.type == "cuda" else torch.device("cpu")
        there: Layout = self._there(layout, device)

        def made(at: Tensor) -> tuple[Tensor, Tensor]:
            if band.column is not None:
                at = at[..., None] if band.by_head else at[:, self._there(band.column, exact)]
            return there.tables(
                at, self._there(band.frequencies, exact), device,
                band.phase if query else None, blended=band.blended and not query,
            )  # fmt: skip

        at = self._there(band.query if query else band.key, exact)
        if not self._keeps_tables:
            return made(at[rows])
        cos, sin = self._once((layout, band, device, query), lambda: made(at))
        return cos[rows], sin[rows]


@dataclass(frozen=True)
class BandView:
    """The keys of one band, as a ``View`` of an engine; ``modules`` are those of the layers."""

    attention: BandedAttention
    band: Band
    modules: Mapping[int, nn.Module]

    @property
    def length(self) -> int:
        """The context that the bands are for."""
        return self.attention.bands.length

    @property
    def fingerprint(self) -> str:
        """That of all bands."""
        return self.attention.bands.fingerprint

    def span(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first key of each row and the end; no keys of rows outside the band."""
        own, inside = self._own(positions)
        first, end = (
            self.attention._there(bound, positions.device)[own] * inside
            for bound in (self.band.first, self.band.end)
        )
        return first, end

    def turned(self, layer: int, states: Tensor, positions: Tensor, *, query: bool) -> Tensor:
        """Return the states of rows rotated by the band; of those outside it, any."""
        attention, groups = self.attention, states.shape[1]
        at = positions.clamp(max=len(self.band.key) - 1)
        if query:
            if attention._scales(layer, rotated=True):
                states = attention._scaled(states, positions)
            at = self._own(positions)[0]
        module = self.module(layer)
        return attention._rotated(module, groups, self.band, at, states, query=query)

    def module(self, layer: int) -> nn.Module:
        """Return the attention of a layer."""
        return self.modules[layer]

    def _own(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the band that positions are, and which are among them."""
        own, last = positions - self.band.start, len(self.band.first) - 1
        return own.clamp(0, last), (own >= 0) & (own <= last)


def _gathered(layout: Layout, band: Band, layer: int) -> Tensor:
    """Return the columns of a flattened table that rotate the channels of a layer's heads."""
    columns: Any = band.column
    channels = torch.arange(len(layout.pair))
    of_channel = columns[layer][:, layout.pair.clamp(min=0)]
    gathered: Tensor = (of_channel * len(channels) + channels).flatten()
    return gathered


def _present(states: Tensor, keys: slice, dropped: int) -> Tensor:
    """Return these keys or values; the first ``dropped`` of the context are absent.

    Absent ones that a tile covers are zero: no row of the call attends to them.
    """
    first, end = keys.start - dropped, keys.stop - dropped
    missing = max(-first, 0), max(end - states.shape[2], 0)
    present = states[:, :, max(first, 0) : end]
    return pad(present, (0, 0, *missing)) if any(missing) else present
