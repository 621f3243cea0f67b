"""Position Interpolation: inv_freq / factor; dynamic with the factor unset (arXiv:2306.15595)."""

from ropewalk.scaling.types import Factor, Frequencies, Rope, factor_or_stretch


def frequencies(rope: Rope, length: int, *, factor: Factor = None) -> Frequencies:
    """Return inv_freq / factor; an unset factor is the stretch of the length."""
    return Frequencies(rope.inv_freq() / factor_or_stretch(factor, rope, length))
