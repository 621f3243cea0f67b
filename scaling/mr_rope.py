"""MrRoPE: the factor grows over the middle channels, evenly or faster (arXiv:2601.22181)."""

import math
from typing import Literal

import torch

from ropewalk.scaling._ramp import bounds
from ropewalk.scaling.types import Factor, FewTurns, Frequencies, Rope, Turns, factor_or_stretch


def frequencies(
    rope: Rope,
    length: int,
    *,
    factor: Factor = None,
    kind: Literal["uni", "pro"] = "pro",
    beta_fast: Turns = 32.0,
    beta_slow: FewTurns = 1.0,
) -> Frequencies:
    """Return inv_freq above beta_fast turns in the trained window, / factor below beta_slow.

    In the n steps from the last unchanged channel to the first fully divided one, channel k is
    divided by factor^(k/n) (``uni``) or factor^(k(k+1) / (n(n+1))) (``pro``). The attention factor
    is yarn's, 0.1 ln(factor) + 1. An unset factor is the stretch of the length.

    The numbers are those of mattian7/mrRoPE (LlamaYaRNRadix.py: yarn_radix and yarn_radix3), also
    at both ends. The fastest channel is kept in any window. If no channel is slower than beta_slow,
    the steps continue past the last one. The numbers agree with the paper's equations as quoted in
    notes; the text of the paper was not available.
    """
    if not (math.isfinite(beta_fast) and beta_fast > beta_slow > 0):
        raise ValueError(
            "beta_fast must be above beta_slow, and both above 0, "
            f"got beta_fast={beta_fast}, beta_slow={beta_slow}"
        )
    if kind not in ("uni", "pro"):
        raise ValueError(f"kind is uni or pro, got {kind}")
    scale = factor_or_stretch(factor, rope, length)
    last_kept, first_divided = bounds(rope, beta_slow, beta_fast, truncate=True)
    n = max(first_divided - last_kept, 1)
    k = (torch.arange(rope.rotary_dim // 2, dtype=torch.float32) - last_kept).clamp(0, n)
    shares = k / n if kind == "uni" else k * (k + 1) / (n * (n + 1))
    return Frequencies(rope.inv_freq() / scale**shares, 0.1 * math.log(scale) + 1.0)
