"""Compute fused causal attention of some rows over all keys before them, with the same bits always.

On a CPU the kernel's bits depend on how the keys are cut into blocks, so keys are filled up to
whole blocks, unseen: a row then has the same bits whatever follows it, in one call, in chunks
and in forks (float32, tested). No mask is longer than a tile of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import pad, scaled_dot_product_attention

KEY_BLOCK = 512  # keys the CPU kernel processes at a time
TILE = 256  # query rows under one mask
FLASH_FROM, FLASH_CHANNELS = (8, 0), 256  # compute capability, and the most channels of a head
LEAST_ROWS = 16  # of a matrix product: fewer use another kernel, with other bits


class Kernel(Protocol):
    """Compute the attention of a layer's rows over the keys up to each."""

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        position: int,
        scale: float | None,
        kept: dict[Any, Any] | None = None,
        /,
    ) -> torch.Tensor:
        """Return (1, heads, rows, head_dim) of rows at positions ``position``…, as ``causal``.

        ``kept`` belongs to one layer of a text that is continued token by token: what a kernel
        computes from keys and keeps there need not be computed for the next token.
        """


@dataclass
class Causal:
    """Plain causal attention, of positions below ``longest``; its mask is made once."""

    longest: int
    mask: torch.Tensor | None = None

    def __call__(
        self,
        _: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        position: int,
        scale: float | None,
        _kept: dict[Any, Any] | None = None,
    ) -> torch.Tensor:
        """Return the attention of rows at positions ``position``…."""
        if self.mask is None and position and blocked(query.device):
            self.mask = tile_mask(self.longest, query)
        return causal(query, key, value, position, scale, self.mask)


def blocked(device: torch.device) -> bool:
    """Return whether rows and keys must come in whole blocks: on a CPU, for equal bits."""
    return device.type == "cpu"


def copied(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether heads that share keys get copies of them; a CPU needs none.

    Of PyTorch's fused kernels for CUDA the flash kernel (16 bits, up to 256 channels, compute
    capability 8.0) reads shared keys in place with ``enable_gqa``, which says of itself that it
    "currently works only for Flash_attention and math kernel on CUDA tensor"
    (torch.nn.functional.scaled_dot_product_attention). The memory-efficient kernel refuses it, and
    without a word all scores would be in memory: there, as in float32, keys are copied.
    """
    if query.shape[1] == key.shape[1] or blocked(query.device):
        return False
    if query.device.type != "cuda":
        return True
    return not can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, False, True))


def copied_on(device: torch.device, dtype: torch.dtype, heads: int, groups: int, dim: int) -> bool:
    """Return ``copied`` of a shape by what the flash kernel is for; True where no GPU is here.

    It makes no tensor: that would take a plan hundreds of MiB of the GPU.
    """
    if heads == groups or blocked(device):
        return False
    if device.type != "cuda" or not torch.cuda.is_available():
        return True
    flash = torch.backends.cuda.is_flash_attention_available() and dim <= FLASH_CHANNELS
    recent = torch.cuda.get_device_capability(device) >= FLASH_FROM
    return not (flash and recent and dtype.itemsize == 2)


def padded_length(length: int, device: torch.device) -> int:
    """Return how many rows keys of a length must have."""
    return -(-length // KEY_BLOCK) * KEY_BLOCK if blocked(device) else length


def tile_mask(longest: int, like: torch.Tensor) -> torch.Tensor:
    """Return the mask of one tile at position ``longest``; every earlier mask is a part of it.

    (TILE, longest + TILE + KEY_BLOCK): 0 where row i may see key j <= longest + i, else -inf.
    """
    mask = like.new_zeros((TILE, longest + TILE + KEY_BLOCK))
    mask[:, longest:] = like.new_full((TILE, TILE + KEY_BLOCK), float("-inf")).triu_(1)
    return mask


def causal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position: int,
    scale: float | None,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Return the attention of rows at positions ``position``…, (1, heads, rows, head_dim).

    ``query`` is (1, heads, rows, head_dim), ``key`` and ``value`` (1, kv_heads, padded length,
    head_dim) from position 0 on; ``mask`` is that of ``tile_mask`` at or past the last tile, which
    only a CPU needs, and only past position 0.
    """
    rows = query.shape[2]
    if not blocked(query.device):
        if rows == 1:  # it sees all keys, and a text has no memory for copies of them each time
            return scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=True)
        shared = query.shape[1] != key.shape[1]
        if shared and copied(query, key, value):
            copies = query.shape[1] // key.shape[1]
            key, value = (t.repeat_interleave(copies, 1) for t in (key, value))
            shared = False
        # Of the flash kernel this is no mask: it is causal from the last row and key on.
        seen = causal_lower_right(rows, key.shape[2]) if position else None
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=seen,
            is_causal=not position,
            scale=scale,
            enable_gqa=shared,
        )
    if mask is None or position == 0:
        return _fused(query, key, value, scale, None)
    longest = mask.shape[1] - TILE - KEY_BLOCK
    out = torch.empty_like(query)
    for low in range(0, rows, TILE):
        high = min(low + TILE, rows)
        held = padded_length(position + high, query.device)
        shift = longest - position - low
        tile = query[:, :, low:high]
        out[:, :, low:high] = _fused(
            tile, key[:, :, :held], value[:, :, :held], scale, mask[:, shift : shift + held]
        )
    return out


def _fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    mask: torch.Tensor | None,
) -> torch.Tensor:
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
