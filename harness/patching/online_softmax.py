"""Compute one softmax over differently rotated pairs: fused pieces, merged by log-sum-exp."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from harness.patching.tiles import Piece

NOTHING = -1e30  # log-sum-exp of no pair: two of -inf would be NaN where they are merged
TILE = 1024  # rows and keys of the scores in memory at once, without a fused kernel
FLASH = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass
class Merged:
    """The running softmax of some rows: values ``(batch, heads, rows, width)`` and log-sum-exp.

    Both are float32 or wider. Rows without a pair are zero, and their log-sum-exp is NOTHING.
    """

    values: torch.Tensor
    lse: torch.Tensor

    @staticmethod
    def empty(query: torch.Tensor, width: int) -> Merged:
        """Return the softmax over no keys, for the rows of ``(batch, heads, rows, …)``."""
        dtype = torch.promote_types(query.dtype, torch.float32)
        values = query.new_zeros((*query.shape[:3], width), dtype=dtype)
        return Merged(values, query.new_full(query.shape[:3], NOTHING, dtype=dtype))

    def of(self, rows: slice | torch.Tensor) -> Merged:
        """Return some rows; a slice is a view, and additions to it change this softmax."""
        return Merged(self.values[:, :, rows], self.lse[:, :, rows])

    def add(self, rows: slice, values: torch.Tensor, lse: torch.Tensor) -> None:
        """Merge the softmax of these rows over keys that were not in it before."""
        before, now = self.values[:, :, rows], self.lse[:, :, rows]
        both = torch.logaddexp(now, lse.to(now.dtype))
        before.mul_((now - both).exp()[..., None])
        before.add_(values * (lse - both).exp()[..., None])
        now.copy_(both)


def attend(
    merged: Merged,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cut: Iterable[Piece],
    scale: float,
    softcap: float | None,
) -> None:
    """Merge the pairs of some pieces into a softmax.

    ``query`` is (batch, heads, rows, width), ``key`` and ``value`` (batch, heads, keys, width) with
    heads repeated as views where several queries share one.
    """
    for piece in cut:
        rows, keys = slice(*piece.rows), slice(*piece.keys)
        parts = [query[:, :, rows], key[:, :, keys], value[:, :, keys]]
        if piece.shape == "upper":  # upside down and back to front it is a lower one
            parts = [part.flip(2) for part in parts]
        found, lse = _piece(parts, piece.shape != "all", scale, softcap)
        if piece.shape == "upper":
            found, lse = found.flip(2), lse.flip(2)
        merged.add(rows, found, lse)


Parts = list[torch.Tensor]


def _piece(
    parts: Parts, causal: bool, scale: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and log-sum-exp of one piece, by a fused kernel where there is one."""
    query, key, value = parts
    if softcap is None and query.dtype in FLASH and query.device.type == "cuda":
        width = max(query.shape[-1], value.shape[-1])
        query, key, padded = (widened(part, width) for part in parts)
        found, lse = _on_cuda(query, key, padded, causal, scale)
        return found[..., : value.shape[-1]], lse
    return _tiled(query, key, value, causal, scale, softcap)


def widened(part: torch.Tensor, width: int) -> torch.Tensor:
    """Fill channels up with zeros; a tensor that is wide enough stays a view."""
    missing = width - part.shape[-1]
    return nn.functional.pad(part, (0, missing)) if missing else part


def _on_cuda(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The memory-efficient kernel: 16 and 32 bits; its log-sum-exp is padded to whole blocks."""
    found, lse = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, None, True, 0.0, causal, scale=scale
    )[:2]
    return found, lse[..., : query.shape[2]]


def _tiled(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    causal: bool,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute scores tile by tile: for soft-capping, and devices without a fused kernel."""
    merged = Merged.empty(query, value.shape[-1])
    for row in range(0, query.shape[2], TILE):
        rows = slice(row, row + TILE)
        for at in range(0, min(key.shape[2], row + TILE) if causal else key.shape[2], TILE):
            keys = slice(at, at + TILE)
            scores = (query[:, :, rows] @ key[:, :, keys].mT).to(merged.lse.dtype) * scale
            if softcap is not None:
                scores = softcap * (scores / softcap).tanh()
            if causal:
                behind = row - at
                scores = scores.masked_fill(
                    ~torch.ones_like(scores, dtype=torch.bool).tril(behind), -torch.inf
                )
            lse = scores.logsumexp(-1)
            found = (scores - lse[..., None]).exp().to(value.dtype) @ value[:, :, keys]
            merged.add(rows, found, lse)
    return merged.values, merged.lse
