"""NTK-RoPE-mixed: a base per channel, slower by factor^((2(i+1)/d)^0.75) (Su, kexue.fm 9706)."""

from typing import Annotated

import torch

from ropewalk.scaling.types import Factor, Frequencies, Range, Rope, factor_or_stretch

CODE = "bojone/rerope"  # of the authors, on GitHub


def frequencies(
    rope: Rope,
    length: int,
    *,
    factor: Factor = None,
    exponent: Annotated[float, Range(0.25, 1.0)] = 0.75,
) -> Frequencies:
    """Return inv_freq / factor^share, where a channel's share is (2(i+1)/d)^exponent.

    The slowest channel is interpolated by the whole factor; an exponent of 1 divides in equal
    steps, a smaller one divides the fast channels more. An unset factor is the stretch of the
    length.

    Differs from the author's code (bojone/rerope, ntk_patch.py), which also multiplies queries by
    max(1, ln(position) / ln(trained_length)), its log-n scaling (here ``log_n``), and whose factor
    is fixed at 12.
    """
    if not 0 < exponent <= 1:
        raise ValueError(f"exponent must be above 0 and at most 1, got {exponent}")
    scale = factor_or_stretch(factor, rope, length)
    pairs = rope.rotary_dim // 2
    shares = (torch.arange(1, pairs + 1, dtype=torch.float32) / pairs) ** exponent
    return Frequencies(rope.inv_freq() / scale**shares)
