"""Compute fused causal attention of some rows over all keys before them, with the same bits always.

On a CPU the kernel's bits depend on how the keys are cut into blocks. Keys are therefore padded to
whole blocks and the padding is masked. A row then has the same bits whatever follows it, in one
call, in chunks and in forks (float32, tested). No mask has more rows than a tile, and CUDA's
kernels need none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.functional import pad, scaled_dot_product_attention

KEY_BLOCK = 512  # keys the CPU kernel processes at a time
TILE = 256  # query rows under one mask
WHOLE_CHANNELS = 8  # CUDA's kernels take heads of whole eights
LOWER_RIGHT = 2  # of the memory-efficient kernel: causal from the last row and key on
LEAST_ROWS = 16  # of a matrix product: fewer use another kernel, with other bits


@dataclass
class Kept:
    """What a kernel computed from the keys of one layer of a text of at most ``rows`` tokens.

    A text comes in chunks or token by token: what is kept need not be computed for later rows.
    """

    rows: int
    parts: dict[Any, Any] = field(default_factory=dict)


# What computes the attention of a layer's rows over the keys up to each, as ``Causal`` does: of a
# module, its query, key and value, the position of the first row, and the scale.
Kernel = Callable[[Any, Tensor, Tensor, Tensor, int, float | None, Kept | None], Tensor]


class View(Protocol):
    """Some of the keys that the rows of many texts see, each row at a position of its own text.

    Together, the views of an attention have every key that a row sees once.
    """

    @property
    def length(self) -> int | None:
        """The number of positions that it is for; None for any."""

    @property
    def fingerprint(self) -> str:
        """What tells its attention from others."""

    def span(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first key of the row at each position, (rows,), and the end of its keys."""

    def turned(self, layer: int, states: Tensor, positions: Tensor, *, query: bool) -> Tensor:
        """Return queries or keys, (1, heads, rows, head_dim), as this view rotates them."""

    def module(self, layer: int) -> Any:
        """Return what the kernel knows a layer by."""


class Before:
    """All keys up to the row's own, as the model rotates them."""

    length: int | None = None
    fingerprint = ""

    def span(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the span of ``View``."""
        return torch.zeros_like(positions), positions + 1

    def turned(self, _: int, states: Tensor, __: Tensor, *, query: bool) -> Tensor:  # noqa: ARG002
        """Return the same."""
        return states

    def module(self, layer: int) -> Any:
        """Return a layer's number alone."""
        return SimpleNamespace(layer_idx=layer)


@dataclass
class Causal:
    """Plain causal attention, of positions below ``longest``.

    Its mask, (TILE, longest + TILE + KEY_BLOCK), is made once: 0 where row i of a tile at position
    ``longest`` may see key j <= longest + i, else -inf. Every earlier tile's is a part of it.
    """

    longest: int
    mask: Tensor | None = None

    def __call__(
        self,
        _: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        position: int,
        scale: float | None,
        _kept: Kept | None = None,
    ) -> Tensor:
        """Return the attention of rows at positions ``position``…, (1, heads, rows, head_dim).

        ``query`` is (1, heads, rows, head_dim). ``key`` and ``value`` are (1, kv_heads, padded
        length, head_dim) from position 0 on.
        """
        rows = query.shape[2]
        if on_gpu(query.device):
            return on_cuda(query, key, value, scale, causal=True)[0]
        if position == 0:
            return _fused(query, key, value, scale, None)
        if self.mask is None:
            self.mask = query.new_zeros((TILE, self.longest + TILE + KEY_BLOCK))
            unseen = query.new_full((TILE, TILE + KEY_BLOCK), float("-inf")).triu_(1)
            self.mask[:, self.longest :] = unseen
        out = torch.empty_like(query)
        for low in range(0, rows, TILE):
            high = min(low + TILE, rows)
            held = padded_length(position + high, query.device)
            shift = self.longest - position - low
            tile, mask = query[:, :, low:high], self.mask[:, shift : shift + held]
            out[:, :, low:high] = _fused(tile, key[:, :, :held], value[:, :, :held], scale, mask)
        return out


def blocked(device: torch.device) -> bool:
    """Return whether rows and keys must come in whole blocks: on a CPU, for equal bits."""
    return device.type == "cpu"


def on_gpu(device: torch.device) -> bool:
    """Return whether attention has CUDA's kernels, of NVIDIA or AMD, which need no mask."""
    return device.type == "cuda"


def kernel_name(device: torch.device, dtype: torch.dtype, channels: int) -> str | None:
    """Return which of CUDA's kernels computes attention of so many channels; None elsewhere."""
    if not on_gpu(device):
        return None
    whole = -(-channels // WHOLE_CHANNELS) * WHOLE_CHANNELS
    probe = torch.empty((1, 1, 1, whole), dtype=dtype, device=device)
    return "flash" if flash_takes(probe, probe, probe) else "memory-efficient"


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return a CPU's values on a device; a GPU is sent them without waiting for its kernels."""
    pinned = values.pin_memory() if device.type == "cuda" else values
    return pinned.to(device, non_blocking=True)


def padded_length(length: int, device: torch.device) -> int:
    """Return how many rows keys of a length must have."""
    return -(-length // KEY_BLOCK) * KEY_BLOCK if blocked(device) else length


def on_cuda(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return attention, as ``query``, and its log-sum-exp, (batch, heads, rows), of CUDA tensors.

    If ``causal``, the last row sees all keys, and each row before it one key less. The kernels are
    called by their operators: ``scaled_dot_product_attention`` takes causality from the first row
    and key on, and PyTorch's bias for the other kind allocates rows x keys numbers on the CPU.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    channels, (query, key, value) = value.shape[-1], widened(query, key, value)
    if flash_takes(query, key, value):
        out, lse = flash(query, key, value, scale, -1, 0 if causal else -1)
    else:
        out, lse = _efficient(query, key, value, scale, causal)
    return out[..., :channels], lse[..., : query.shape[2]]


def widened(*parts: Tensor, whole: int = WHOLE_CHANNELS) -> list[Tensor]:
    """Pad channels with zeros to one width, a multiple of ``whole``; what has it stays a view."""
    width = -(-max(part.shape[-1] for part in parts) // whole) * whole
    few = [width - part.shape[-1] for part in parts]
    return [pad(part, (0, n)) if n else part for part, n in zip(parts, few, strict=True)]


def flash_takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the flash kernel takes them: 16 bits, up to 256 channels, a recent GPU."""
    return bool(can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, False, True)))


def flash_windows(query: Tensor) -> bool:
    """Return whether the flash operator takes queries like these, and windows: NVIDIA's does."""
    return on_gpu(query.device) and not torch.version.hip and flash_takes(query, query, query)


def flash(
    query: Tensor, key: Tensor, value: Tensor, scale: float, left: int, right: int
) -> tuple[Tensor, Tensor]:
    """Return attention in a window, as ``query``, and its log-sum-exp, (batch, heads, rows).

    Row i of R sees keys i + K - R - ``left`` to i + K - R + ``right`` of K, as in FlashAttention-2;
    -1 is no bound. Heads of queries that share one of keys read it in place.
    """
    channels, rows = value.shape[-1], query.shape[2]
    out, lse = torch.ops.aten._flash_attention_forward(
        *(part.transpose(1, 2) for part in widened(query, key, value)),
        *(None, None, rows, key.shape[2], 0.0, right == 0, False),
        scale=scale, window_size_left=left, window_size_right=right,
    )[:2]  # fmt: skip
    return out.transpose(1, 2)[..., :channels], lse[..., :rows]


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """Call the memory-efficient kernel: 32 bits too, and any GPU; its log-sum-exp is padded.

    It wants a key for every head. Heads that share keys are folded into the batch, where each has
    them as a view.
    """
    batch, heads, rows, channels = query.shape
    groups = key.shape[1]
    folded = query.reshape(batch * groups, heads // groups, rows, channels).transpose(1, 2)
    key, value = (
        t.flatten(0, 1)[:, :, None].expand(-1, -1, heads // groups, -1) for t in (key, value)
    )
    lengths = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"))
    kind = LOWER_RIGHT if causal else 0
    out, lse = torch.ops.aten._efficient_attention_forward(
        *(folded, key, value), bias=None, **lengths, dropout_p=0.0, custom_mask_type=kind,
        compute_log_sumexp=True, scale=scale,
    )[:2]  # fmt: skip
    return out.transpose(1, 2).reshape(query.shape), lse.reshape(batch, heads, -1)


def _fused(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, mask: Tensor | None
) -> Tensor:
    """Call the CPU kernel with 16 rows or more; grouped heads share their keys without a copy.

    Without a mask row i sees keys 0 to i.
    """
    _, heads, rows, head_dim = query.shape
    groups = key.shape[1]
    few = -rows % LEAST_ROWS
    filled = pad(query, (0, 0, 0, few)) if few else query
    filled = filled.reshape(groups, heads // groups, rows + few, head_dim)
    key, value = (
        t.transpose(0, 1).expand(groups, heads // groups, t.shape[2], t.shape[3])
        for t in (key, value)
    )
    out = scaled_dot_product_attention(
        filled,
        key,
        value,
        attn_mask=None if mask is None else mask[: rows + few],
        is_causal=mask is None,
        scale=scale,
    )
    return out.reshape(1, heads, rows + few, head_dim)[:, :, :rows]
