"""An attention whose query-key pairs are rotated band by band, for keys cached unrotated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from harness.errors import UserError
from harness.rope.channel_layout import Layout, no_mask
from harness.rope.online_softmax import Merged, attend
from harness.rope.tiles import Piece, pieces
from scaling._bands import Band, Bands, by_distance

Tables = tuple[torch.Tensor, torch.Tensor]
KEPT_BANDS = 8  # tables of cos and sin are kept from layer to layer up to so many bands
KEPT_SHAPES = 64  # the parts of so many shapes of calls are kept: decoding has one a token


@dataclass(frozen=True, eq=False)
class Part:
    """What one band covers of one call: rows, keys, pieces, and ``own``, the band's rows."""

    band: Band
    own: slice
    rows: slice
    keys: slice
    cut: list[Piece]


def parts(bands: Sequence[Band], rows: int, keys: int, window: int | None) -> list[Part]:
    """Return what each band covers of a call whose rows are the last of this many keys.

    ``window`` is that of a sliding layer in tokens: a query meets the last so many keys only.
    """
    found = []
    for band in bands:
        start, stop = max(band.start, keys - rows), min(band.start + len(band.first), keys)
        if start >= stop:
            continue
        own = slice(start - band.start, stop - band.start)
        first, end = band.first[own], band.end[own]
        if window is not None:
            first = torch.minimum(first.clamp(min=torch.arange(start, stop) + 1 - window), end)
        met = end > first
        if not bool(met.any()):
            continue
        least, most = int(first[met].min()), int(end[met].max())
        cut = pieces(first - least, end - least)
        place = slice(start - (keys - rows), stop - (keys - rows))
        found.append(Part(band, own, place, slice(least, most), cut))
    return found


class BandedAttention:
    """The attention of transformers' interface, for keys that are cached unrotated."""

    def __init__(self, bands: Bands, layouts: Mapping[nn.Module, Layout | None]) -> None:
        """Store the bands, and the layout of each layer; None is a layer that does not rotate."""
        self.bands, self.layouts = bands, layouts
        self._plain = by_distance(bands.length, bands.frequencies, 0)
        self._parts: dict[Any, list[Part]] = {}
        self._tables: dict[Any, Tables] = {}
        self._dropped = 0  # keys that the caches of sliding layers no longer have

    def mask(self, *given: Any, kv_offset: int = 0, **named: Any) -> None:
        """Return no mask; note the position of the first key of sliding layers."""
        no_mask(*given, **named)
        if named.get("local_size") is not None:
            self._dropped = int(kv_offset)

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        sliding_window: int | None = None,
        **__: Any,
    ) -> tuple[torch.Tensor, None]:
        """Return (batch, rows, heads, width); the rows are the last positions of the keys."""
        batch, heads, rows = query.shape[:3]
        if module not in self.layouts:
            message = "the config is shared with another model; give each model its own."
            raise UserError(message)
        layout, scale = self.layouts[module], scaling or query.shape[-1] ** -0.5
        dropped = 0 if sliding_window is None else self._dropped
        length = key.shape[2] + dropped
        asked = self._asked(rows, length, layout is not None, sliding_window)
        query = self._scaled(query, length, sliding_window)
        query, key, value = _grouped(query, key, value)
        merged = Merged.empty(query, value.shape[-1])
        for part in asked:
            held = slice(part.keys.start - dropped, part.keys.stop - dropped)
            q, k, v = query[:, :, part.rows], key[:, :1, held], value[:, :, held]
            if layout is not None:
                q = layout.rotate(q, *self._rotation(layout, part, q.device, query=True))
                k = layout.rotate(k, *self._rotation(layout, part, k.device, query=False))
            attend(
                merged.of(part.rows),
                q,
                k.expand(-1, q.shape[1], -1, -1),
                v,
                part.cut,
                scale,
                softcap,
            )
        if s_aux is not None:  # one logit per head; its value is zero
            sinks = s_aux.reshape(-1, query.shape[1], 1).repeat(batch, 1, rows)
            merged.add(slice(None), torch.zeros_like(merged.values), sinks)
        found = merged.values.reshape(batch, heads, rows, -1).transpose(1, 2)
        return found.to(query.dtype).contiguous(), None

    def _asked(self, rows: int, keys: int, rotated: bool, window: int | None) -> list[Part]:
        """Return the parts of a call; they are the same in every layer of a kind."""
        if keys > self.bands.length:
            message = f"the bands are for {self.bands.length} tokens, the context has {keys}"
            raise ValueError(message)
        name = (rows, keys, rotated, window)
        if name not in self._parts:
            if len(self._parts) == KEPT_SHAPES:
                del self._parts[next(iter(self._parts))]
            bands = self.bands.bands if rotated else (self._plain,)
            self._parts[name] = parts(bands, rows, keys, window)
        return self._parts[name]

    def _scaled(self, query: torch.Tensor, keys: int, window: int | None) -> torch.Tensor:
        """Scale the queries of a layer that sees the whole context."""
        if self.bands.query_scale is None or window is not None:
            return query
        scale = self.bands.query_scale[keys - query.shape[2] : keys, None]
        wide = torch.promote_types(query.dtype, torch.float32)  # a device may lack float64
        return (query * scale.to(wide).to(query.device)).to(query.dtype)

    def _rotation(self, layout: Layout, part: Part, device: torch.device, *, query: bool) -> Tables:
        """Return the tables of a part's queries or keys.

        Tables of few bands are computed once for all layers and calls; a call gets a view.
        """
        band, asked = part.band, part.own if query else part.keys
        positions, phase = (band.query, band.phase) if query else (band.key, None)
        if len(self.bands.bands) > KEPT_BANDS:
            return layout.tables(positions[asked], band.frequencies, device, phase)
        name = (layout, band, device, query)
        if name not in self._tables:
            self._tables[name] = layout.tables(positions, band.frequencies, device, phase)
        cos, sin = self._tables[name]
        return cos[asked], sin[asked]


def _grouped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fold the heads of keys into the batch, so that queries sharing one share it as a view."""
    shared = key.shape[1]
    group = query.shape[1] // shared
    query = query.reshape(-1, group, *query.shape[2:])
    key, value = (x.flatten(0, 1)[:, None].expand(-1, group, -1, -1) for x in (key, value))
    return query, key, value
