"""The share of each channel pair that stays unscaled, for methods that scale by parts."""

import math

import torch

from ropewalk.scaling.types import Rope


def check_critical(rope: Rope, critical: int) -> int:
    """Return a critical channel, counted from 0; raise ValueError where it is out of range."""
    slowest = rope.rotary_dim // 2 - 1
    if not 1 <= critical <= slowest:
        raise ValueError(f"critical must be a channel from 1 to {slowest}, got {critical}")
    return critical


def by_turns(rope: Rope, slow: float, fast: float, critical: int | None = None) -> torch.Tensor:
    """Return the share kept: 0 up to ``slow`` turns, 1 from ``fast`` on, linear in between.

    float32 ``(rotary_dim // 2,)``. YaRN, arXiv:2309.00071, definition 2. ``critical`` is a channel
    whose turns replace ``slow``.
    """
    if critical is not None:
        slow = float(rope.turns()[check_critical(rope, critical)])
        _check_slower(critical, slow < fast)
    return ((rope.turns() - slow) / (fast - slow)).clamp(0, 1)


def by_index(
    rope: Rope, slow: float, fast: float, *, truncate: bool, critical: int | None = None
) -> torch.Tensor:
    """Return the share kept: decreasing linearly in channel index from ``fast`` to ``slow`` turns.

    float32 ``(rotary_dim // 2,)``. YaRN's reference code and transformers, corners included: an
    empty range is a step. ``critical`` is the channel where nothing is kept, instead of ``slow``.
    """
    first, last = bounds(rope, slow, fast, truncate=truncate)
    if critical is not None:
        last = check_critical(rope, critical)
        _check_slower(critical, first < last)
    if first == last:
        last += 0.001
    indices = torch.arange(rope.rotary_dim // 2, dtype=torch.float32)
    return 1 - ((indices - first) / (last - first)).clamp(0, 1)


def _check_slower(critical: int, slower: bool) -> None:
    """Raise ValueError where a critical channel leaves no room for the ramp."""
    if not slower:
        raise ValueError(
            f"critical must be slower than the last channel that is kept, got {critical}"
        )


def bounds(rope: Rope, slow: float, fast: float, *, truncate: bool) -> tuple[float, float]:
    """Return the channels at ``fast`` and ``slow`` turns, rounded outwards if ``truncate``.

    As in YaRN's reference code they may lie past the last channel: they end at rotary_dim - 1
    although indices end at rotary_dim // 2 - 1, and begin at 0.
    """

    def index(turns: float) -> float:
        """Return the (fractional) channel with so many turns in the trained window."""
        logarithm = math.log(rope.trained_length / (turns * 2 * math.pi))
        return rope.rotary_dim * logarithm / (2 * math.log(rope.base))

    first, last = index(fast), index(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    return max(first, 0), min(last, rope.rotary_dim - 1)


def mixed(rope: Rope, factor: float, kept: torch.Tensor) -> torch.Tensor:
    """Return kept * inv_freq + (1 - kept) * inv_freq / factor, in transformers' rounding."""
    if factor == 1:
        return rope.inv_freq()  # the sum below would lose a bit here and there
    scaled = 1.0 / (factor * rope.tokens_per_radian())
    return scaled * (1 - kept) + rope.inv_freq() * kept
