"""The slow, plain way to move positions: the whole matrix of them, one softmax, float64.

It shares nothing with the engine but the bands: queries and keys are rotated by the model's own
code (``apply_rotary_pos_emb`` and its own rotary module), pair by pair, and the attention is eager.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any
from unittest.mock import patch

import torch

from ropewalk.harness.patching.config import FULL
from ropewalk.harness.patching.frequencies import PatchedRotary, placed, rotary_name
from ropewalk.scaling.types import Band, Bands, Frequencies

Pair = tuple[int, int]  # a query and a key
Pairs = dict[Pair, tuple[Any, Band]]


def positions(bands: Bands, length: int) -> Pairs:
    """Return the relative position of every pair that is met, and its band.

    Where channel pairs or heads differ it is a list, a position for each column of the band.
    """
    found: Pairs = {}
    for band in bands.bands:
        for m, first, end, query in zip(
            range(band.start, length), band.first, band.end, band.query, strict=False
        ):
            for n, relative in enumerate((query - band.key[first:end]).tolist(), int(first)):
                assert (m, n) not in found, "a pair is in two bands"
                found[m, n] = (relative, band)
    return found


def by_pair(band: Band, at: list[Any], layer: int, heads: int) -> list[torch.Tensor]:
    """Return each head's relative positions, ``(query-key pairs, channel pairs)`` in float64."""
    relative = torch.tensor(at, dtype=torch.float64)
    if band.column is None:
        return [relative[:, None].expand(-1, len(band.frequencies.inv_freq))] * heads
    maps = band.column[layer] if band.column.dim() == 3 else [band.column] * heads
    return [torch.stack([relative[:, int(c)] for c in one], 1) for one in maps]


@dataclass
class Naive:
    """An eager attention, and a rotation that only takes note of what it is asked."""

    bands: Bands
    rotary: Any
    rotate: Any
    per_type: bool
    asked: list[Any] = field(default_factory=list)

    @cached_property
    def layout(self) -> str:
        """Return how the model's own rotary module lays the angles of its channel pairs out."""
        pairs, layer = len(self.bands.last.inv_freq), {}
        if self.per_type:
            layer = {"layer_type": FULL}
        marked = Frequencies(torch.linspace(0.0, 1.0, pairs))
        table = torch.ones(1, pairs, dtype=torch.float64)
        cos = PatchedRotary(self.rotary, marked)(table, torch.ones(1, 1), **layer)[0][0, 0]
        if len(cos) == pairs:
            return "once"
        return "halves" if torch.equal(cos[:pairs], cos[pairs:]) else "neighbours"

    @cached_property
    def pairs(self) -> Pairs:
        """Return the pairs that are met at the bands' own length."""
        return positions(self.bands, self.bands.length)

    def unrotated(self, q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        """Stand in for apply_rotary_pos_emb: layers whose rotary is at rest rotate later."""
        if bool((sin != 0).any()):
            return self.rotate(q, k, cos, sin, *args, **kwargs)
        self.asked.append((args, kwargs))
        return q, k

    def moved(
        self, x: torch.Tensor, at: torch.Tensor, how: Frequencies, asked: Any, phase: Any = None
    ) -> torch.Tensor:
        """Rotate (1, heads, tokens, width) to positions (tokens, pairs), by the model's code."""
        angles = at * how.inv_freq.double()
        angles += 0 if phase is None else phase
        cos, sin = (
            self.laid(table)[None] * how.attention_factor for table in (angles.cos(), angles.sin())
        )
        return self.rotate(x, x, cos, sin, *asked[0], **asked[1])[0]

    def laid(self, table: torch.Tensor) -> torch.Tensor:
        """Lay a table ``(tokens, pairs)`` out as the model's own rotary module lays out its own."""
        if self.layout == "halves":
            return torch.cat((table, table), 1)
        return table if self.layout == "once" else table.repeat_interleave(2, 1)

    def met(self, length: int, window: int | None, *, moved: bool) -> Iterator[list[Pair]]:
        """Yield the pairs that are met, up to so many of one band together as a cache holds."""
        groups: dict[int, list[Pair]] = {}
        for n, m in combinations_with_replacement(range(length), 2):
            if (window is None or n > m - window) and (not moved or (m, n) in self.pairs):
                groups.setdefault(id(self.pairs[m, n][1]) if moved else 0, []).append((m, n))
        for group in groups.values():
            yield from (group[at : at + 1000] for at in range(0, len(group), 1000))

    def attend(self, module: Any, q: Any, k: Any, v: Any, *_: Any, **kwargs: Any) -> Any:
        """Stand in for eager_attention_forward."""
        asked = self.asked.pop() if self.asked else None
        length, window = q.shape[2], kwargs.get("sliding_window")
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = q.new_full((q.shape[1], length, length), -torch.inf)
        for pairs in self.met(length, window, moved=asked is not None):
            queries, keys = (list(side) for side in zip(*pairs, strict=True))
            query, key = q[:, :, queries], k
            if asked is not None:
                band = self.pairs[pairs[0]][1]
                at = [self.pairs[pair][0] for pair in pairs]
                at = by_pair(band, at, getattr(module, "layer_idx", 0), q.shape[1])
                scores[:, queries, keys] = self.rotated(query, k[:, :, keys], band, at, asked)
                continue
            scores[:, queries, keys] = (query * key[:, :, keys]).sum(-1)[0]
        scores *= kwargs.get("scaling") or q.shape[-1] ** -0.5
        if self.bands.query_scale is not None and window is None:
            scores *= self.bands.query_scale[:length, None]
        return self.values(module, scores, v, **kwargs), None

    def rotated(
        self, query: torch.Tensor, key: torch.Tensor, band: Band, at: Any, asked: Any
    ) -> torch.Tensor:
        """Return the scores (heads, pairs) of queries and keys at each head's relative positions.

        Where keys are blended the score is interpolated between the two whole positions.
        """
        how, still = band.frequencies, torch.zeros(1, 1, dtype=torch.float64)
        key = self.moved(key, still, how, asked)
        scores = []
        for head, relative in enumerate(at):
            q, k = query[:, head : head + 1], key[:, head : head + 1]
            low, high = relative.floor(), relative.ceil()
            if band.blended:
                part = (relative - low)[:, 0]
                one, other = (
                    (self.moved(q, each, how, asked, band.phase) * k).sum(-1)[0, 0]
                    for each in (low, high)
                )
                scores.append((1 - part) * one + part * other)
            else:
                scores.append((self.moved(q, relative, how, asked, band.phase) * k).sum(-1)[0, 0])
        return torch.stack(scores)

    def values(self, module: Any, scores: Any, v: Any, **kwargs: Any) -> Any:
        """Cap, add the sinks' column, take the one softmax and the values."""
        if kwargs.get("softcap"):
            scores = kwargs["softcap"] * (scores / kwargs["softcap"]).tanh()
        sinks = kwargs.get("s_aux", getattr(module, "sinks", None))
        if sinks is not None:
            column = sinks[:, None, None].expand(-1, scores.shape[1], 1).to(scores)
            scores = torch.cat((scores, column), -1)
        return (scores.softmax(-1)[..., : v.shape[2]] @ v[0])[None].transpose(1, 2).contiguous()


@contextmanager
def naively(model: Any, bands: Bands) -> Iterator[Any]:
    """Yield a float64 copy of a model that attends by the whole matrix of positions."""
    wide = deepcopy(model).double()
    wide.set_attn_implementation("eager")
    wide.set_experts_implementation("eager")  # the fused one knows no float64
    name = rotary_name(wide)
    own = wide.get_submodule(name)
    home = sys.modules[type(own).__module__]
    naive = Naive(bands, deepcopy(own), home.apply_rotary_pos_emb, isinstance(own.rope_type, dict))
    with (
        placed(wide, name, Frequencies(torch.zeros_like(bands.last.inv_freq))),
        patch.object(home, "apply_rotary_pos_emb", naive.unrotated),
        patch.object(home, "eager_attention_forward", naive.attend),
    ):
        yield wide
