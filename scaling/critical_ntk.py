"""Critical-base NTK: a channel of one turn per window is divided by factor (arXiv:2310.05209)."""

import math

from ropewalk.scaling._ramp import check_critical
from ropewalk.scaling.types import Factor, Frequencies, Rope, factor_or_stretch


def frequencies(
    rope: Rope, length: int, *, factor: Factor = None, critical: int | None = None
) -> Frequencies:
    """Return the plain frequencies of the base base^(ln(L / 2 pi) / ln(L0 / 2 pi)).

    L0 is the trained window and L is factor * L0. Equivalently, the base is
    base * factor^(d / 2c) for the critical channel c = d/2 * ln(L0 / 2 pi) / ln(base), a fraction.
    The wavelength of channel c is the window. It is divided by exactly the factor and slower
    channels by more, so no angle exceeds those of training. ``ntk`` uses the slowest channel,
    d/2 - 1, instead.

    ``critical`` sets another channel, counted from 0. LongRoPE2 (arXiv:2502.20082) searches it and
    calls this method NTK-rcd. Its channel is faster: 30 and not 34.98 for Llama 3. An unset factor
    is the stretch of the length.
    """
    turning = math.log(max(rope.trained_length, 1) / (2 * math.pi))
    if turning <= 0:
        raise ValueError(
            f"critical_ntk needs a trained window of 7 tokens, got {rope.trained_length}"
        )
    scale = factor_or_stretch(factor, rope, length)
    exponent = math.log(rope.base) / turning
    if critical is not None:
        exponent = rope.rotary_dim / (2 * check_critical(rope, critical))
    return Frequencies(rope.inv_freq(rope.base * scale**exponent))
