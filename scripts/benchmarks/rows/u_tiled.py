"""A tiled attention on matrix products in bfloat16, beside PyTorch's fused kernel."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.setting import Row, Setting, ratios, row

DEVICE = "cpu"
HEADS, GROUPS, CHANNELS = 9, 3, 64  # SmolLM2-135M
LENGTHS = (4096, 16_384, 32_768)
ROWS, COLUMNS = 256, 512  # of a tile
ALLOWED = 2**-6 + 2**-8  # half a step of bfloat16 in scores under 8, and in what comes out


def measure(setting: Setting) -> list[Row]:
    """Causal attention of SmolLM2's shape."""
    return [found for length in LENGTHS for found in _rows(setting, setting.size(length))]


def _rows(setting: Setting, length: int) -> list[Row]:
    """Return the ratio of both speeds, and each."""
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(heads, length, CHANNELS, dtype=torch.bfloat16)
        for heads in (HEADS, GROUPS, GROUPS)
    )
    apart = _apart(tiled(query, key, value), fused(query, key, value))
    assert apart <= ALLOWED, f"results differ by {apart:.1e}, allowed {ALLOWED:.1e}"
    times = setting.interleaved(
        partial(tiled, query, key, value), partial(fused, query, key, value)
    )
    done = 2 * HEADS * CHANNELS * length * (length + 1)
    what = f"causal attention of {HEADS} heads on {GROUPS}, bfloat16, {length} tokens"
    gained = ratios(times[1], times[0])
    found = [
        row("u", f"{what}: tiled over fused, speed", gained, "x", None, f"rows within {apart:.1e}")
    ]
    for name, taken in zip(("tiled", "fused"), times, strict=True):
        speeds = [done / seconds / 1e9 for seconds in taken]
        found.append(row("u", f"the same, {name}", speeds, "10^9 operations/s", None))
    return found


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest distance of a head's row from the other's, over the length of that."""
    one, other = one.float(), other.float()
    return float(((one - other).norm(dim=-1) / other.norm(dim=-1)).max())


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return PyTorch's causal attention; heads that share keys read them without a copy."""
    stacked = query.view(len(key), -1, *key.shape[1:])
    key, value = (one[:, None].expand(stacked.shape) for one in (key, value))
    return scaled_dot_product_attention(stacked, key, value, is_causal=True).flatten(0, 1)


def tiled(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return causal attention, (heads, length, head_dim), of keys (kv_heads, length, head_dim).

    Queries of heads that share a key head are rows of one product. A product sums in float32 and
    hands back bfloat16; softmax, its sums and the sums over tiles are in float32.
    """
    groups, length, channels = key.shape
    query = (query * channels**-0.5).view(groups, -1, length, channels)
    out = torch.empty_like(query)
    for group in range(groups):
        for first in range(0, length, ROWS):
            rows = slice(first, min(first + ROWS, length))
            out[group, :, rows] = _tiles(query[group, :, rows], key[group], value[group], first)
    return out.flatten(0, 1)


def _tiles(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: int) -> torch.Tensor:
    """Return the attention of a tile of rows, (heads, rows, head_dim), from ``first`` on."""
    rows, end = query.flatten(0, 1), first + query.shape[1]
    most = torch.full((len(rows), 1), float("-inf"))
    total, sums = torch.zeros_like(most), torch.zeros(rows.shape)
    for low in range(0, end, COLUMNS):
        keys = slice(low, min(low + COLUMNS, end))
        scores = torch.mm(rows, key[keys].t()).float()
        if keys.stop > first:  # on the diagonal
            by_head = scores.view(*query.shape[:2], -1)
            unseen = torch.ones(by_head.shape[1:], dtype=torch.bool).triu_(first - low + 1)
            by_head.masked_fill_(unseen, float("-inf"))
        largest = torch.maximum(most, scores.amax(-1, keepdim=True))
        shrunk, most = most.sub_(largest).exp_(), largest
        scores.sub_(most).exp_()
        total.mul_(shrunk).add_(scores.sum(-1, keepdim=True))
        sums.mul_(shrunk).add_(torch.mm(scores.bfloat16(), value[keys]))
    return sums.div_(total).view(query.shape).to(query.dtype)
