"""Run a model with an attention whose query-key pairs are rotated band by band."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from harness.errors import UserError
from harness.layout import Layout, attending, layouts
from harness.pieces import Piece, pieces
from harness.rotary import as_is, placed, probe, rotary_name
from harness.softmax import Merged, attend
from scaling._bands import Band, Bands, by_distance
from scaling._types import Frequencies

Tables = tuple[torch.Tensor, torch.Tensor]
KEPT_BANDS = 8  # tables of cos and sin are kept from layer to layer up to so many bands
KEPT_SHAPES = 64  # the parts of so many shapes of calls are kept, as a pack of runs has many
CHECKED = 24  # tokens of the prompt on which the attention is verified
ERRORS = {torch.float32: 1e-4, torch.float64: 1e-4}  # of the largest logit; other dtypes are coarse
COARSE = 5e-2


@dataclass(frozen=True, eq=False)
class Part:
    """What one band asks of one call: rows, keys, the pieces, and ``own``, the band's rows."""

    band: Band
    own: slice
    rows: slice
    keys: slice
    cut: list[Piece]


def parts(bands: Sequence[Band], rows: int, keys: int, window: int | None) -> list[Part]:
    """Return what is asked of a call whose rows are the last of this many keys.

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
        """Hold the bands, and how each layer rotates; None is a layer that does not."""
        self.bands, self.layouts = bands, layouts
        self._plain = by_distance(bands.length, bands.frequencies, 0)
        self._parts: dict[Any, list[Part]] = {}
        self._tables: dict[Any, Tables] = {}

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
        layout, scale = self.layouts[module], scaling or query.shape[-1] ** -0.5
        asked = self._asked(rows, key.shape[2], layout is not None, sliding_window)
        query = self._scaled(query, key.shape[2], sliding_window)
        query, key, value = _grouped(query, key, value)
        merged = Merged.empty(query, value.shape[-1])
        for part in asked:
            q, k, v = query[:, :, part.rows], key[:, :1, part.keys], value[:, :, part.keys]
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
        if s_aux is not None:  # a logit a head, whose value is zero
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

        Those of few bands are made once, for all layers and calls: what a call asks is a view.
        """
        band, asked = part.band, part.own if query else part.keys
        positions = band.query if query else band.key
        if len(self.bands.bands) > KEPT_BANDS:
            return layout.tables(positions[asked], band.frequencies, device)
        name = (layout, band, device, query)
        if name not in self._tables:
            self._tables[name] = layout.tables(positions, band.frequencies, device)
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


@contextmanager
def banded(model: Any, bands: Bands) -> Iterator[None]:
    """Run a loaded causal language model with these bands; restore it bit for bit on exit.

    Its rotary module gives no rotation, so that keys are cached unrotated, and its attention
    rotates them. Layers without a rotary embedding, and the sliding layers of a model with a rotary
    embedding per layer type, attend as they always do. Raises UserError, naming the model, where
    the model's own frequencies in bands do not give its own output, on a short prompt: where its
    attention is not understood.
    """
    name = rotary_name(model)
    wanted = len(as_is(model.get_submodule(name)).inv_freq)
    if any(len(band.frequencies.inv_freq) != wanted for band in bands.bands):
        message = f"{type(model).__name__} rotates {wanted} channel pairs, the bands others."
        raise UserError(message)
    found = layouts(model)
    _verify(model, name, found)
    with _attending(model, name, bands, found):
        yield


@contextmanager
def _attending(
    model: Any, name: str, bands: Bands, found: Mapping[nn.Module, Layout | None]
) -> Iterator[None]:
    rest = Frequencies(torch.zeros_like(as_is(model.get_submodule(name)).inv_freq))
    with placed(model, name, rest), attending(model, BandedAttention(bands, found)):
        yield


def _verify(model: Any, name: str, found: Mapping[nn.Module, Layout | None]) -> None:
    """Check that bands at the true relative positions change nothing, and at others something.

    The positions are moved by a constant, and the pairs cut in three bands: what is checked is the
    rotation, the windows, the soft-capping and the sinks of every layer, and the merging.
    """
    kind, own = type(model).__name__, as_is(model.get_submodule(name))
    size = min(CHECKED, model.config.get_text_config().vocab_size)
    before, here = probe(model, size), torch.arange(size)
    outputs = []
    for moved in (0, 3):
        cuts = ((0, 5, 70), (5, 11, 0), (11, None, 9))
        three = tuple(
            by_distance(size, own, near, far, query=here + at + moved * (near > 0), key=here + at)
            for near, far, at in cuts
        )
        with _attending(model, name, Bands(size, three), found):
            outputs.append(probe(model, size))
    allowed = ERRORS.get(before.dtype, COARSE) * float(before.abs().max())
    error = float((outputs[0] - before).abs().max())
    if not error <= allowed:
        message = (
            f"{kind}: its own rotary embedding, cut into bands, changes its logits by {error:.2g}"
            f" (allowed: {allowed:.2g}); positions cannot be moved in it."
        )
        raise UserError(message)
    if not float((outputs[1] - before).abs().max()) > error:
        message = f"{kind}: its output does not depend on relative positions; refused."
        raise UserError(message)
