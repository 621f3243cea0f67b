"""Define the input and output of a method: a rotary geometry in, frequencies out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch


@dataclass(frozen=True)
class Range:
    """Where ``ropewalk tune`` looks for an option's value, beside its type: not what is allowed.

    ``low`` and ``high`` are in units of ``of``: 1, the stretch of the length or the trained window.
    ``log``: equal steps are equal ratios. Write ``kept: Annotated[float, Range(0.1, 0.9)] = 0.5``.
    """

    low: float
    high: float
    log: bool = False
    of: Literal["one", "stretch", "window"] = "one"


Factor = Annotated[float | None, Range(0.5, 4.0, log=True, of="stretch")]
Turns = Annotated[float, Range(4.0, 128.0, log=True)]  # above which channels are kept
FewTurns = Annotated[float, Range(0.1, 4.0, log=True)]  # below which they are divided in full
Window = Annotated[int | None, Range(1 / 64, 3 / 4, log=True, of="window")]  # in tokens


@dataclass(frozen=True)
class Rope:
    """The rotary embedding a model was trained with, before any scaling.

    ``rotary_dim`` counts rotated channels of one head (even); ``base`` is the rope theta;
    ``trained_length`` is one window of pretraining in tokens; ``shipped`` is the checkpoint's own
    scaling in Hugging Face's words (``rope_type`` and its parameters), empty for none; ``layers``
    is the number of decoder layers.
    """

    rotary_dim: int
    base: float
    trained_length: int
    shipped: Mapping[str, object] = field(default_factory=dict)
    layers: int = 1

    def stretch(self, length: int) -> float:
        """Return the stretch of a length, max(1, length / trained_length)."""
        return max(1.0, length / self.trained_length)

    def tokens_per_radian(self, base: float | None = None) -> torch.Tensor:
        """Return base^(2i/d), fastest first, float32 ``(rotary_dim // 2,)``.

        RoFormer, arXiv:2104.09864, section 3.2.2. The operations and their order are those of
        transformers, so that the plain frequencies are the same bits. Raises ValueError for a base
        that float32 does not hold.
        """
        base = self.base if base is None else base
        if base > torch.finfo(torch.float32).max:
            raise ValueError(f"base must be at most 3.4e38, which float32 holds, got {base:.3g}")
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.int64).to(torch.float32)
        powers: torch.Tensor = base ** (exponents / self.rotary_dim)
        return powers

    def inv_freq(self, base: float | None = None) -> torch.Tensor:
        """Return base^(-2i/d), radians per token, fastest first, float32 ``(rotary_dim // 2,)``."""
        return 1.0 / self.tokens_per_radian(base)

    def turns(self) -> torch.Tensor:
        """Return the full turns each channel pair makes in the trained window, float32."""
        return self.trained_length * self.inv_freq() / (2 * math.pi)


@dataclass(frozen=True, eq=False)
class Frequencies:
    """The result of a method: one angular frequency per channel pair, and a factor.

    ``inv_freq`` is float32 ``(rotary_dim // 2,)``, radians per token, fastest first;
    ``attention_factor`` multiplies cos and sin, so attention logits by its square. Raises
    ValueError for anything that cannot be a rotary embedding.
    """

    inv_freq: torch.Tensor
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.inv_freq.dtype != torch.float32 or self.inv_freq.dim() != 1:
            kind = f"{self.inv_freq.dtype} {tuple(self.inv_freq.shape)}"
            raise ValueError(f"inv_freq must be one row of float32, got {kind}")
        if not bool(torch.isfinite(self.inv_freq).all()) or bool((self.inv_freq < 0).any()):
            raise ValueError(
                f"inv_freq must be finite and not negative, got {self.inv_freq.tolist()}"
            )
        if not (math.isfinite(self.attention_factor) and self.attention_factor > 0):
            raise ValueError(f"attention_factor must be positive, got {self.attention_factor}")

    @property
    def fingerprint(self) -> str:
        """Return a hash of the numbers; equal numbers are measured once, whatever their names."""
        numbers = self.inv_freq.detach().cpu().contiguous().numpy().tobytes()
        factor = float(self.attention_factor).hex().encode()
        return hashlib.sha256(numbers + factor).hexdigest()[:16]


def factor_or_stretch(factor: float | None, rope: Rope, length: int) -> float:
    """Return the fixed factor, or the stretch of this length where it is unset."""
    if factor is None:
        return rope.stretch(length)
    if not (math.isfinite(factor) and factor >= 1):
        raise ValueError(f"factor must be 1 or more, got {factor}")
    return float(factor)


@dataclass(frozen=True, eq=False)
class PerLayerFrequencies:
    """The frequencies of each decoder layer, the first layer (that next to the tokens) first.

    There are as many as ``rope.layers``; those of layers that a method never scales (without a
    rotary embedding, or sliding ones with their own) are not used.
    """

    layers: tuple[Frequencies, ...]

    @property
    def fingerprint(self) -> str:
        """Return a hash of the numbers; where all layers are alike, that of their frequencies."""
        prints = [one.fingerprint for one in self.layers]
        if len(set(prints)) == 1:
            return prints[0]
        return hashlib.sha256(" ".join(["layers", *prints]).encode()).hexdigest()[:16]


def by_layer(layers: Sequence[Frequencies]) -> PerLayerFrequencies | Frequencies:
    """Return frequencies layer by layer; only frequencies where all layers are alike."""
    alike = len({one.fingerprint for one in layers}) == 1
    return layers[0] if alike else PerLayerFrequencies(tuple(layers))


@dataclass(frozen=True, eq=False)
class StatefulRope:
    """The library's own rope type, whose frequencies follow the tokens it has seen.

    ``rope_parameters`` are added to the config's own (``rope_type`` and its parameters),
    ``trained_length`` is its window in tokens; ``frequencies`` those it would have if all tokens
    of the context were known at once. The prompt up to the first target is read in one forward,
    the targets one token at a time: keys cached early keep the frequencies of their time.
    """

    rope_parameters: Mapping[str, object]
    trained_length: int
    frequencies: Frequencies

    @property
    def fingerprint(self) -> str:
        """Return a hash of the parameters and of the frequencies at the whole context."""
        given = sorted(self.rope_parameters.items())
        numbers = json.dumps([self.trained_length, given, self.frequencies.fingerprint])
        return hashlib.sha256(f"served {numbers}".encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Band:
    """Some of the pairs of a causal attention, and the positions of their rotation.

    Row r is the query at position ``start + r``. It meets the keys ``first[r]`` up to, not
    including, ``end[r]`` (int64 ``(rows,)``; none where they are equal). Its query is rotated to
    position ``query[r]`` (float64 ``(rows,)``, tokens, fractions allowed) and the key at position n
    to ``key[n]`` (float64, as many as ``end`` reaches), both at ``frequencies``; so the relative
    position of a pair is ``query[r] - key[n]``. ``phase`` is added to the angle of every query, a
    channel pair at a time (float64 ``(rotary_dim // 2,)``, radians). Raises ValueError for what is
    not causal.
    """

    first: torch.Tensor
    end: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    frequencies: Frequencies
    start: int = 0
    phase: torch.Tensor | None = None

    def __post_init__(self) -> None:
        shapes = {tuple(row.shape) for row in (self.first, self.end, self.query)}
        if len(shapes) != 1 or self.key.dim() != 1 or len(next(iter(shapes))) != 1:
            raise ValueError(
                f"first, end and query must be rows of one length, got {sorted(shapes)}"
            )
        if self.first.dtype != torch.int64 or self.end.dtype != torch.int64:
            raise ValueError(
                f"first and end must be int64, got {self.first.dtype} and {self.end.dtype}"
            )
        numbers = [row for row in (self.query, self.key, self.phase) if row is not None]
        if not all(n.dtype == torch.float64 and bool(torch.isfinite(n).all()) for n in numbers):
            raise ValueError("query and key must be finite float64 positions, phase such angles")
        rows = self.start + torch.arange(len(self.first))
        causal = (self.first >= 0) & (self.first <= self.end) & (self.end <= rows + 1)
        if not bool(causal.all()):
            at = int(rows[~causal][0])
            raise ValueError(f"query {at} must meet keys first..end within 0..{at + 1}")
        if len(self.end) and int(self.end.max()) > len(self.key):
            raise ValueError(
                f"keys up to {int(self.end.max())} are met, {len(self.key)} have a position"
            )

    @property
    def pairs(self) -> int:
        """Return how many query-key pairs the band covers."""
        return int((self.end - self.first).sum())

    def upto(self, length: int) -> Band:
        """Return the band in a context of only this many tokens."""
        rows = slice(0, max(0, length - self.start))
        first, end, query = self.first[rows], self.end[rows], self.query[rows]
        reached = int(end.max()) if len(end) else 0
        if (len(first), reached) == (len(self.first), len(self.key)):
            return self
        return replace(self, first=first, end=end, query=query, key=self.key[:reached])


@dataclass(frozen=True, eq=False)
class Bands:
    """An attention whose pairs are rotated band by band, under one softmax.

    No pair is in two bands; a pair in none is not attended to. ``query_scale`` multiplies each
    query, so its logits (float64 ``(length,)``), in every full-attention layer, rotary or not.
    ``length`` is the context in tokens. Raises ValueError where bands overlap or a query is left
    without a key.
    """

    length: int
    bands: tuple[Band, ...]
    query_scale: torch.Tensor | None = None

    def __post_init__(self) -> None:
        kept = tuple(b for b in (band.upto(self.length) for band in self.bands) if b.pairs)
        object.__setattr__(self, "bands", kept)
        rows = torch.cat([band.start + torch.arange(len(band.first)) for band in kept])
        first, end = (torch.cat([getattr(b, name) for b in kept]) for name in ("first", "end"))
        order = torch.argsort(rows * (self.length + 1) + first)
        order = order[(end > first)[order]]
        rows, first, end = rows[order], first[order], end[order]
        twice = (rows[1:] == rows[:-1]) & (first[1:] < end[:-1])
        if bool(twice.any()):
            raise ValueError(f"query {int(rows[1:][twice][0])} meets a key in two bands")
        met = torch.zeros(self.length, dtype=torch.bool)
        met[rows] = True
        if not bool(met.all()):
            raise ValueError(f"query {int((~met).nonzero()[0])} meets no key")

    @property
    def fingerprint(self) -> str:
        """Return a hash of the numbers; equal attention is measured once, whatever its name."""
        digest = hashlib.sha256(f"bands {self.length}".encode())
        for band in self.bands:
            digest.update(f"{band.start} {band.frequencies.fingerprint}".encode())
            rows = (band.first, band.end, band.query, band.key, band.phase)
            for row in (row for row in rows if row is not None):
                digest.update(_bytes(row))
        if self.query_scale is not None:
            digest.update(_bytes(self.query_scale))
        return digest.hexdigest()[:16]

    @property
    def frequencies(self) -> Frequencies:
        """Return the frequencies of the last query and its last key."""
        last = [band for band in self.bands if band.start + len(band.first) == self.length]
        met = [band for band in last if int(band.end[-1]) > int(band.first[-1])]
        return max(met, key=lambda band: int(band.end[-1])).frequencies

    @property
    def pairs(self) -> int:
        """Return how many query-key pairs are attended to."""
        return sum(band.pairs for band in self.bands)

    @property
    def reach(self) -> float:
        """Return the largest relative position, in tokens, that a pair is rotated to."""
        return max(reach_of(band) for band in self.bands)

    def relative(self, query: int) -> torch.Tensor:
        """Return the relative positions that a query and every key up to it are rotated to.

        float64 ``(query + 1,)``, tokens; NaN for a key that it does not meet.
        """
        found = torch.full((query + 1,), torch.nan, dtype=torch.float64)
        for band in self.bands:
            row = query - band.start
            if 0 <= row < len(band.first):
                met = slice(int(band.first[row]), int(band.end[row]))
                found[met] = band.query[row] - band.key[met]
        return found

    def upto(self, length: int) -> Bands | Frequencies:
        """Return the same attention in a shorter context, in its plainest form."""
        scale = None if self.query_scale is None else self.query_scale[:length]
        return plainest(Bands(length, self.bands, scale))


def plainest(found: Bands) -> Bands | Frequencies:
    """Return only frequencies where the bands are equivalent to them.

    They are where all pairs are met, at the same frequencies and at the true positions, as in most
    methods inside the trained window.
    """
    scale = found.query_scale
    if scale is not None and bool((scale == 1).all()):
        return plainest(replace(found, query_scale=None))
    if scale is not None or len({band.frequencies.fingerprint for band in found.bands}) > 1:
        return found
    whole = found.pairs == found.length * (found.length + 1) // 2
    return found.frequencies if whole and all(map(_unmoved, found.bands)) else found


def _unmoved(band: Band) -> bool:
    """Return whether a band's queries and keys are rotated to their true positions."""
    return band.phase is None and _counted(band.query, band.start) and _counted(band.key)


def _counted(row: torch.Tensor, start: int = 0) -> bool:
    """Return whether a row counts up by one from its start."""
    return torch.equal(row, torch.arange(start, start + len(row), dtype=row.dtype))


def beyond(
    length: int,
    frequencies: Frequencies,
    window: int,
    *,
    query: torch.Tensor | None = None,
    key: torch.Tensor | None = None,
) -> Bands | Frequencies:
    """Return true positions at distances below ``window`` tokens, and others from there on.

    ``query`` and ``key`` are those others by token, ``(length,)``; unset, the true ones.
    """
    near = by_distance(length, frequencies, 0, window)
    far = by_distance(length, frequencies, window, query=query, key=key)
    return plainest(Bands(length, (near, far)))


def by_distance(
    length: int,
    frequencies: Frequencies,
    nearest: int,
    farthest: int | None = None,
    *,
    query: torch.Tensor | None = None,
    key: torch.Tensor | None = None,
) -> Band:
    """Return the band of all pairs at a distance of ``nearest`` <= m - n < ``farthest`` tokens.

    ``query`` and ``key`` are positions by token, float64 ``(length,)``; unset, the true ones.
    """
    here = torch.arange(length)
    end = (here + 1 - nearest).clamp(min=0)
    first = torch.zeros_like(here) if farthest is None else (here + 1 - farthest).clamp(min=0)
    query, key = (here if given is None else given for given in (query, key))
    return Band(torch.minimum(first, end), end, query.double(), key.double(), frequencies)


def _bytes(row: torch.Tensor) -> bytes:
    """Return a row's numbers for a hash; the row 0, 1, 2, … in few bytes, as most keys are."""
    return f"0 to {len(row)}".encode() if _counted(row) else row.contiguous().numpy().tobytes()


def reach_of(band: Band) -> float:
    """Return the largest query position less the least key position that meets it."""
    met = band.end > band.first
    return float((band.query[met] - _least(band.key, band.first[met], band.end[met])).max())


def _least(key: torch.Tensor, first: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Return the minimum of ``key[first:end]`` for each of these spans; none is empty.

    Where keys never fall it is the first; elsewhere a span is two blocks of a power of two.
    """
    if not bool((key.diff() < 0).any()):
        return key[first]
    found, width = key.new_empty(len(first)), end - first
    blocks, size = key, 1  # the minimum of so many keys from each one on
    while size <= int(width.max()):
        here = (size <= width) & (width < 2 * size)
        found[here] = torch.minimum(blocks[first[here]], blocks[end[here] - size])
        blocks, size = torch.minimum(blocks[:-size], blocks[size:]), 2 * size
    return found


def scaled(found: Bands | Frequencies, length: int, scale: torch.Tensor) -> Bands:
    """Return an attention with each query multiplied by its scale, float64 ``(length,)``."""
    if isinstance(found, Frequencies):
        return Bands(length, (by_distance(length, found, 0),), scale)
    before = 1.0 if found.query_scale is None else found.query_scale
    return replace(found, query_scale=scale * before)


Rotation = Frequencies | PerLayerFrequencies | Bands | StatefulRope


def frequencies_of(found: Rotation | Band) -> Frequencies:
    """Return the frequencies in it: of bands those of the last query, of layers the last one's."""
    if isinstance(found, PerLayerFrequencies):
        return found.layers[-1]
    return found if isinstance(found, Frequencies) else found.frequencies


def needs_code(found: Rotation | None) -> bool:
    """Return whether no config can state it: it moves positions, or its layers are not alike."""
    return isinstance(found, Bands | PerLayerFrequencies)


def sets_of(found: Rotation) -> tuple[Frequencies, ...]:
    """Return all frequencies in it: those of each layer, or of each band."""
    if isinstance(found, PerLayerFrequencies):
        return found.layers
    inner = found.bands if isinstance(found, Bands) else (found,)
    return tuple(frequencies_of(part) for part in inner)
