"""How fast this process is now, by the two kernels that all else is made of."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.setting import Setting


def matrix_speed(setting: Setting, dtype: torch.dtype) -> float:
    """Return operations a second of a matrix product (2048 x 1408 x 512, as in model S)."""
    rows = setting.size(2048)
    one, other = (
        torch.randn(shape, dtype=dtype, device=setting.device)
        for shape in ((rows, 512), (1408, 512))
    )
    return (
        2
        * rows
        * 512
        * 1408
        / _seconds(setting, lambda: torch.mm(one, other.t()), setting.size(40))
    )


def attention_seconds(setting: Setting, dtype: torch.dtype, heads: int, length: int) -> float:
    """Return the seconds of one causal attention of 64 channels a head."""
    query, key, value = (
        torch.randn(1, heads, length, 64, dtype=dtype, device=setting.device) for _ in range(3)
    )
    return _seconds(
        setting, lambda: scaled_dot_product_attention(query, key, value, is_causal=True), 2
    )


def _seconds(setting: Setting, way: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(1 if setting.quick else 5):
        began = setting.clock()
        for _ in range(times):
            way()
        found.append((setting.clock() - began) / times)
    return statistics.median(found)
