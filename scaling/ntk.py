"""NTK-aware: base * factor^(d/(d-2)), which interpolates only the slowest channel (bloc97)."""

import math

from ropewalk.scaling.types import Factor, Frequencies, Rope, factor_or_stretch

CODE = "jquesnelle/yarn"  # of the authors, on GitHub


def frequencies(
    rope: Rope, length: int, *, factor: Factor = None, base: float | None = None
) -> Frequencies:
    """Return the plain frequencies of a larger base.

    The exponent d/(d-2) makes the slowest channel exactly factor times slower and keeps the
    fastest (posted as "NTK-Aware Scaled RoPE", 2023; written down in YaRN,
    arXiv:2309.00071, definition 1). An unset factor is the stretch of the length. A given
    ``base`` is used unchanged at every length, also inside the trained window.
    """
    if base is not None:
        return Frequencies(rope.inv_freq(_checked(base, factor)))
    if rope.rotary_dim < 4:
        raise ValueError(f"ntk needs a rotary_dim of 4 or more, got {rope.rotary_dim}")
    scale = factor_or_stretch(factor, rope, length)
    exponent = rope.rotary_dim / (rope.rotary_dim - 2)
    return Frequencies(rope.inv_freq(rope.base * scale**exponent))


def _checked(base: float, factor: float | None) -> float:
    """Return the base; raise ValueError for one that is not valid."""
    if factor is not None:
        raise ValueError(f"give factor or base, not both, got factor={factor} and base={base}")
    if not (math.isfinite(base) and base > 1):
        raise ValueError(f"base must be above 1, got {base}")
    return base
