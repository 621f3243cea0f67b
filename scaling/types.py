"""The types of scaling methods: the geometry they get, the rotations they return, and helpers."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch


@dataclass(frozen=True)
class Range:
    """Where ``ropewalk tune`` searches an option; values outside it remain allowed.

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

    Attributes:
        rotary_dim: number of rotated channels of a head (even).
        base: the rope theta.
        trained_length: one window of pretraining, in tokens.
        shipped: the checkpoint's own scaling in Hugging Face's words (``rope_type`` and its
            parameters); empty for none.
        layers: number of decoder layers.
        heads: number of query heads of a layer.
        turning: number of channel pairs that turn, the fastest; None for all (Gemma 4's
            ``proportional`` type turns a quarter).
    """

    rotary_dim: int
    base: float
    trained_length: int
    shipped: Mapping[str, object] = field(default_factory=dict)
    layers: int = 1
    heads: int = 1
    turning: int | None = None

    def stretch(self, length: int) -> float:
        """Return the stretch of a length, max(1, length / trained_length)."""
        return max(1.0, length / self.trained_length)

    def tokens_per_radian(self, base: float | None = None) -> torch.Tensor:
        """Return base^(2i/d), fastest first, float32 ``(rotary_dim // 2,)``; inf at rest.

        RoFormer, arXiv:2104.09864, section 3.2.2. The operations and their order are those of
        transformers, so that the plain frequencies have the same bits. Raises ValueError for a base
        that exceeds float32.
        """
        base = self.base if base is None else base
        if base > torch.finfo(torch.float32).max:
            raise ValueError(f"base must be at most 3.4e38, which float32 holds, got {base:.3g}")
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.int64).to(torch.float32)
        powers: torch.Tensor = base ** (exponents / self.rotary_dim)
        if self.turning is not None:
            powers[self.turning :] = math.inf
        return powers

    def inv_freq(self, base: float | None = None) -> torch.Tensor:
        """Return base^(-2i/d), radians per token, fastest first, float32 ``(rotary_dim // 2,)``."""
        return 1.0 / self.tokens_per_radian(base)

    def turns(self) -> torch.Tensor:
        """Return the full turns each channel pair makes in the trained window, float32."""
        return self.trained_length * self.inv_freq() / (2 * math.pi)


class Rotation(ABC):
    """What a method returns: how queries and keys are rotated at one length.

    Its four kinds share this interface, so that callers need not tell them apart. What is not
    overridden below is that of one set of frequencies at true positions.
    """

    per_layer: ClassVar[bool] = False  # each layer has frequencies of its own
    moves_positions: ClassVar[bool] = False  # or drops pairs, or scales queries
    stateful: ClassVar[bool] = False  # the frequencies change while a text is read

    @property
    def needs_code(self) -> bool:
        """Whether no config can express it, so that serving it takes a modelling file."""
        return self.per_layer or self.moves_positions

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the numbers: equal numbers are measured once, whatever their names."""

    @abstractmethod
    def frequency_sets(self) -> tuple[Frequencies, ...]:
        """Return all frequencies it consists of: one set, or one per layer or band."""

    @property
    def last(self) -> Frequencies:
        """The frequencies of the last layer; of bands, between the last query and its last key."""
        return self.frequency_sets()[-1]

    def to_record(self) -> dict[str, Any]:
        """Return its numbers as ``run.json`` stores them."""
        return self.last.to_record()

    def plainest(self) -> Rotation:
        """Return an equal rotation of the simplest kind."""
        return self

    def upto(self, length: int) -> Rotation:
        """Return the same rotation in a shorter context, in its simplest form."""
        return self

    def checked(self, rope: Rope, length: int) -> Rotation:
        """Return the rotation; raise ValueError if it does not fit this geometry and length."""
        pairs = rope.rotary_dim // 2
        for count in {len(part.inv_freq) for part in self.frequency_sets()} - {pairs}:
            raise ValueError(f"{count} frequencies for {pairs} channel pairs")
        return self

    def as_bands(self, length: int) -> Bands:
        """Return the same attention as bands; not of stateful types, nor of sets by layer."""
        return Bands(length, (by_distance(length, self.last, 0),))

    def inside(self) -> Rotation:
        """Return the same rotary embedding, with nothing scaled outside it."""
        return self


@dataclass(frozen=True, eq=False)
class Frequencies(Rotation):
    """One angular frequency per channel pair, and a factor.

    ``inv_freq`` is float32 ``(rotary_dim // 2,)``, radians per token, fastest first;
    ``attention_factor`` multiplies cos and sin, so attention logits by its square. Raises
    ValueError for anything that cannot be a rotary embedding.

    Two factors are outside the rotary embedding. ``logit_scale`` multiplies the logits of every
    layer, as DeepSeek's softmax scale. ``temperature`` (beta, step) multiplies the query at
    position m by 1 + beta * ln(1 + floor(m / step)), as the model's own code does (Ministral 3);
    with an offset behind them, that of m + offset, in layers without rotary alone (Llama 4).
    """

    inv_freq: torch.Tensor
    attention_factor: float = 1.0
    logit_scale: float = 1.0
    temperature: tuple[float, int] | tuple[float, int, int] | None = None

    def __post_init__(self) -> None:
        row: Any = self.inv_freq  # a user's method may give anything
        if not isinstance(row, torch.Tensor) or row.dtype != torch.float32 or row.dim() != 1:
            kind = getattr(row, "dtype", type(row).__name__)
            raise ValueError(f"inv_freq must be one row of a float32 tensor, got {kind}")
        wrong = ~torch.isfinite(row) | (row < 0)
        if bool(wrong.any()):
            pair = int(wrong.nonzero()[0])
            raise ValueError(
                f"inv_freq must be finite and not negative, got {float(row[pair]):g} for channel"
                f" pair {pair}"
            )
        for name in ("attention_factor", "logit_scale"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be positive, got {value}")

    @property
    def fingerprint(self) -> str:
        numbers = self.inv_freq.detach().cpu().contiguous().numpy().tobytes()
        factor = float(self.attention_factor).hex().encode()
        outside = json.dumps(self._outside()).encode() if self._outside() else b""
        return hashlib.sha256(numbers + factor + outside).hexdigest()[:16]

    def _outside(self) -> dict[str, Any]:
        """Return what it scales outside the rotary embedding; empty for nothing."""
        both = {"logit_scale": self.logit_scale, "temperature": self.temperature}
        return {name: value for name, value in both.items() if value not in (1.0, None)}

    def inside(self) -> Frequencies:
        return Frequencies(self.inv_freq, self.attention_factor) if self._outside() else self

    def query_scale(self, length: int) -> torch.Tensor:
        """Return what multiplies each query outside the rotary embedding, float64 ``(length,)``."""
        beta, step, *offset = self.temperature or (0.0, 1)
        here = torch.arange(length, dtype=torch.float64) + sum(offset)
        return self.logit_scale * (1 + beta * (1 + (here / step).floor()).log())

    def frequency_sets(self) -> tuple[Frequencies, ...]:
        return (self,)

    def to_record(self) -> dict[str, Any]:
        return {
            "attention_factor": float(self.attention_factor),
            "inv_freq": self.inv_freq.tolist(),
            **self._outside(),
        }


@dataclass(frozen=True, eq=False)
class PerLayerFrequencies(Rotation):
    """The frequencies of each decoder layer, starting with the layer next to the tokens.

    There are as many as ``rope.layers``; those of layers that a method never scales (without a
    rotary embedding, or sliding ones with their own) are not used.
    """

    layers: tuple[Frequencies, ...]
    per_layer = True

    @property
    def fingerprint(self) -> str:
        prints = [layer.fingerprint for layer in self.layers]
        if len(set(prints)) == 1:
            return prints[0]
        return hashlib.sha256(" ".join(["layers", *prints]).encode()).hexdigest()[:16]

    def frequency_sets(self) -> tuple[Frequencies, ...]:
        return self.layers

    def to_record(self) -> dict[str, Any]:
        return {"layers": [layer.to_record() for layer in self.layers]}

    def plainest(self) -> PerLayerFrequencies | Frequencies:
        return self.layers[0] if self.fingerprint == self.layers[0].fingerprint else self

    def checked(self, rope: Rope, length: int) -> Rotation:
        if len(self.layers) != rope.layers:
            raise ValueError(
                f"{len(self.layers)} sets of frequencies for {rope.layers} layers; a method "
                "returns one for each layer"
            )
        super().checked(rope, length)
        return self.plainest()


@dataclass(frozen=True, eq=False)
class Band:
    """Some of the query-key pairs of a causal attention, and the positions they are rotated to.

    Row r is the query at position ``start + r``. It attends to the keys from ``first[r]`` up to,
    but not including, ``end[r]`` (int64 ``(rows,)``; none where they are equal). Its query is
    rotated to position ``query[r]`` (float64 ``(rows,)``, tokens, fractions allowed). The key at
    position n is rotated to ``key[n]`` (float64, as many as ``end`` reaches). Both use
    ``frequencies``, so the relative position of a pair is ``query[r] - key[n]``. ``phase`` is added
    to the angle of every query, one value per channel pair (float64 ``(rotary_dim // 2,)``,
    radians).

    Positions may differ between channel pairs, and between heads. Then ``query`` is ``(rows,
    columns)``, ``key`` ``(keys, columns)``, and ``column`` says which column rotates a channel pair
    (int64 ``(rotary_dim // 2,)``), or a channel pair of a query head (``(layers, heads,
    rotary_dim // 2)``). Where ``blended``, a key at a fractional position is the linear blend of
    that key at the two whole positions around it: its scores are the blend of theirs.

    Raises ValueError for what is not causal, and for shapes that do not fit.
    """

    first: torch.Tensor
    end: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    frequencies: Frequencies
    start: int = 0
    phase: torch.Tensor | None = None
    column: torch.Tensor | None = None
    blended: bool = False

    def __post_init__(self) -> None:
        spans, columns = (self.first, self.end), self.query.shape[1:]
        if any(s.dtype != torch.int64 or s.shape != self.query.shape[:1] for s in spans):
            raise ValueError("first and end must be int64, one number per row of query")
        numbers = [row for row in (self.query, self.key, self.phase) if row is not None]
        if not all(n.dtype == torch.float64 and bool(n.isfinite().all()) for n in numbers):
            raise ValueError("query and key must be finite float64 positions, phase such angles")
        fits = self.key.shape[1:] == columns and len(columns) == (self.column is not None)
        if self.column is not None and fits:
            fits = self.column.dtype == torch.int64 and self.column.dim() in (1, 3)
            fits &= self.column.shape[-1] == len(self.frequencies.inv_freq)
            fits &= set(self.column.flatten().tolist()) <= set(range(*columns))
        if not fits:
            raise ValueError(
                "column must be int64 (pairs,) or (layers, heads, pairs), with numbers of columns "
                "that query and key both have"
            )
        queries = self.start + torch.arange(len(self.first))
        last = (queries + 1).clamp(max=len(self.key))
        causal = (self.first >= 0) & (self.first <= self.end) & (self.end <= last)
        if not bool(causal.all()):
            at = int((~causal).nonzero()[0])
            raise ValueError(
                f"query {int(queries[at])} must meet keys first..end within 0..{int(last[at])}"
            )

    @property
    def pairs(self) -> int:
        """The number of query-key pairs that the band covers."""
        return int((self.end - self.first).sum())

    @property
    def by_head(self) -> bool:
        """Whether positions differ between heads."""
        return self.column is not None and self.column.dim() == 3

    @cached_property
    def reaches(self) -> torch.Tensor:
        """The largest relative position of a channel pair over all heads, float64 ``(pairs,)``."""
        met = self.end > self.first
        query, key = (x if x.dim() == 2 else x[:, None] for x in (self.query, self.key))
        largest = [
            (query[met, at] - _least(key[:, at], self.first[met], self.end[met])).max()
            for at in range(query.shape[1])
        ]
        pairs = len(self.frequencies.inv_freq)
        column = torch.zeros(pairs, dtype=torch.int64) if self.column is None else self.column
        reaches = torch.stack(largest)[column]
        return reaches if reaches.dim() == 1 else reaches.amax((0, 1))

    @property
    def unmoved(self) -> bool:
        """Whether queries and keys are rotated to their true positions."""
        return self.phase is None and _counts(self.query, self.start) and _counts(self.key)

    def upto(self, length: int) -> Band:
        """Return the band in a context of only this many tokens."""
        rows = slice(0, max(0, length - self.start))
        first, end, query = self.first[rows], self.end[rows], self.query[rows]
        reached = int(end.max()) if len(end) else 0
        if (len(first), reached) == (len(self.first), len(self.key)):
            return self
        return replace(self, first=first, end=end, query=query, key=self.key[:reached])


@dataclass(frozen=True, eq=False)
class Bands(Rotation):
    """An attention whose query-key pairs are rotated band by band, under one softmax.

    No pair is in two bands; a pair in none is not attended to. ``query_scale`` multiplies each
    query, so its logits (float64 ``(length,)``), in the full-attention layers ``scaled_in``: "all",
    "unrotated" (those without a rotary embedding), or "2" (from the third layer on).
    ``length`` is the context in tokens. Raises ValueError where bands overlap or a query is left
    without a key.
    """

    length: int
    bands: tuple[Band, ...]
    query_scale: torch.Tensor | None = None
    scaled_in: str = "all"
    moves_positions = True

    def __post_init__(self) -> None:
        kept = tuple(b for b in (band.upto(self.length) for band in self.bands) if b.pairs)
        outer = kept[0].frequencies  # all bands have what one method scales outside
        if outer.inside() is not outer:
            kept = tuple(replace(b, frequencies=b.frequencies.inside()) for b in kept)
            object.__setattr__(self, "bands", kept)
            layers = "all" if len(outer.temperature or ()) < 3 else "unrotated"
            whole = self.scaled(outer.query_scale(self.length), layers)
            object.__setattr__(self, "query_scale", whole.query_scale)
            object.__setattr__(self, "scaled_in", layers)
        object.__setattr__(self, "bands", kept)
        rows = torch.cat([band.start + torch.arange(len(band.first)) for band in kept])
        first, end = (torch.cat([getattr(b, name) for b in kept]) for name in ("first", "end"))
        order = torch.argsort(rows * (self.length + 1) + first)
        order = order[(end > first)[order]]
        rows, first, end = rows[order], first[order], end[order]
        twice = rows[1:][(rows[1:] == rows[:-1]) & (first[1:] < end[:-1])]
        if len(twice):
            raise ValueError(f"query {int(twice[0])} meets a key in two bands")
        lonely = (torch.bincount(rows, minlength=self.length) == 0).nonzero()
        if len(lonely):
            raise ValueError(f"query {int(lonely[0])} meets no key")

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"bands {self.length}".encode())
        for band in self.bands:
            digest.update(f"{band.start} {band.frequencies.fingerprint}".encode())
            rows = (band.first, band.end, band.query, band.key, band.phase, band.column)
            for row in (row for row in rows if row is not None):
                digest.update(_bytes(row))
            digest.update(b"blended" * band.blended)
        if self.query_scale is not None:
            digest.update(_bytes(self.query_scale))
        if self.scaled_in != "all":
            digest.update(self.scaled_in.encode())
        return digest.hexdigest()[:16]

    def frequency_sets(self) -> tuple[Frequencies, ...]:
        return tuple(band.frequencies for band in self.bands)

    def of_last_query(self) -> list[tuple[Band, int, int]]:
        """Return (band, first key, end) for each band that the last query attends to, by end."""
        last = [band for band in self.bands if band.start + len(band.first) == self.length]
        met = [(band, int(band.first[-1]), int(band.end[-1])) for band in last]
        return sorted((one for one in met if one[1] < one[2]), key=lambda one: one[2])

    @property
    def last(self) -> Frequencies:
        return self.of_last_query()[-1][0].frequencies

    @property
    def pairs(self) -> int:
        """The number of query-key pairs that are attended to."""
        return sum(band.pairs for band in self.bands)

    @property
    def reach(self) -> float:
        """The largest relative position, in tokens, that a pair is rotated to."""
        return max(max(band.reaches.tolist(), default=0.0) for band in self.bands)

    def to_record(self) -> dict[str, Any]:
        counts = {"bands": len(self.bands), "pairs": self.pairs, "reach": self.reach}
        return super().to_record() | counts

    def as_bands(self, length: int) -> Bands:
        return self

    def scaled(self, scale: torch.Tensor, layers: str = "all") -> Bands:
        """Return these bands with each query multiplied by its scale, float64 ``(length,)``.

        ``layers`` is as in ``scaled_in``.
        """
        if layers not in ("all", "unrotated") and not layers.isdecimal():
            raise ValueError(f"layers must be all, unrotated or a number, got {layers!r}")
        if self.query_scale is not None:
            if layers != self.scaled_in:
                raise ValueError(f"layers={layers} cannot build on queries scaled in other layers")
            scale = scale * self.query_scale
        return replace(self, query_scale=scale, scaled_in=layers)

    def inside(self) -> Bands | Frequencies:
        return replace(self, query_scale=None, scaled_in="all").plainest()

    def upto(self, length: int) -> Bands | Frequencies:
        scale = None if self.query_scale is None else self.query_scale[:length]
        return Bands(length, self.bands, scale, self.scaled_in).plainest()

    def plainest(self) -> Bands | Frequencies:
        """Return only frequencies where the bands are equivalent to them.

        They are equivalent if all pairs are attended to, at the same frequencies and at their true
        positions. Most methods do this inside the trained window.
        """
        if self.query_scale is not None:
            return self.inside() if bool((self.query_scale == 1).all()) else self
        if len({one.fingerprint for one in self.frequency_sets()}) > 1:
            return self
        whole = self.pairs == self.length * (self.length + 1) // 2
        return self.last if whole and all(band.unmoved for band in self.bands) else self

    def checked(self, rope: Rope, length: int) -> Rotation:
        if self.length != length:
            raise ValueError(f"its bands are for {self.length} tokens")
        shapes = {(*b.column.shape[:2],) for b in self.bands if b.column is not None and b.by_head}
        for layers, heads in shapes - {(rope.layers, rope.heads)}:
            raise ValueError(
                f"positions by head for {layers} layers of {heads} heads; the model has "
                f"{rope.layers} layers of {rope.heads} heads"
            )
        return super().checked(rope, length)

    @property
    def by_head(self) -> bool:
        """Whether positions differ between heads."""
        return any(band.by_head for band in self.bands)


def _counts(row: torch.Tensor, start: int = 0) -> bool:
    """Return whether a row, or every column of several, counts up by one from its start."""
    up = torch.arange(start, start + len(row), dtype=row.dtype)
    return torch.equal(row, up if row.dim() == 1 else up[:, None].expand_as(row))


def _bytes(row: torch.Tensor) -> bytes:
    """Return a row's numbers for a hash; the row 0, 1, 2, … in few bytes, as most keys are."""
    if row.dim() == 1 and _counts(row):
        return f"0 to {len(row)}".encode()
    return row.contiguous().numpy().tobytes()


def _least(key: torch.Tensor, first: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Return the minimum of ``key[first:end]`` for each of these spans; none is empty.

    Where keys never decrease it is the first; elsewhere a span is two blocks of a power of two.
    """
    if not bool((key[1:] < key[:-1]).any()):
        return key[first]
    least, width = key.new_empty(len(first)), end - first
    blocks, size = key, 1  # the minimum of ``size`` keys from each one on
    while size <= int(width.max()):
        here = (size <= width) & (width < 2 * size)
        least[here] = torch.minimum(blocks[first[here]], blocks[end[here] - size])
        blocks, size = torch.minimum(blocks[:-size], blocks[size:]), 2 * size
    return least


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


def factor_or_stretch(factor: float | None, rope: Rope, length: int) -> float:
    """Return the fixed factor, or the stretch of this length where it is unset."""
    if factor is None:
        return rope.stretch(length)
    if not (math.isfinite(factor) and factor >= 1):
        raise ValueError(f"factor must be 1 or more, got {factor}")
    return float(factor)


# The type of an option ``on``, which names the method that another one builds on: its options are
# filled in. On the command line ``on=yarn``, ``on=yarn:factor=8`` or
# ``on=./mine.py:kept=0.6+strength=2`` (a plus joins its options, where a comma ends the outer one).
Method = Callable[[Rope, int], Rotation]


def rotation_on(on: Method, rope: Rope, length: int, *, moved: bool = True) -> Rotation:
    """Return a method's rotation at a length; raise ValueError where nothing can build on it."""
    rotation = on(rope, length)
    if rotation.stateful or rotation.per_layer or (rotation.moves_positions and not moved):
        why = "frequencies for each layer" if rotation.per_layer else "moved positions"
        why = "frequencies that follow the text" if rotation.stateful else why
        name = str(getattr(getattr(on, "func", on), "__module__", on)).rpartition(".")[2]
        raise ValueError(f"nothing can build on={name}, which gives {why}")
    return rotation


def frequencies_on(on: Method, rope: Rope, length: int) -> Frequencies:
    """Return the frequencies of a method; raise ValueError for one that moves positions itself."""
    return rotation_on(on, rope, length, moved=False).last
