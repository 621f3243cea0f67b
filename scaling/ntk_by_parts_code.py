"""NTK-by-parts as in YaRN's code: linear, then NTK-aware, then plain (jquesnelle/yarn)."""

from ropewalk.scaling import ntk
from ropewalk.scaling._ramp import by_index
from ropewalk.scaling.types import Factor, Frequencies, Rope, factor_or_stretch

CODE = "jquesnelle/yarn"  # of the authors, on GitHub

# Turns in the trained window between which one part blends into the next, by channel index.
LINEAR, NTK = 0.75, 1.25
SCALED, PLAIN = 2.0, 16.0


def frequencies(rope: Rope, length: int, *, factor: Factor = None) -> Frequencies:
    """Return inv_freq above 16 turns in the trained window, ntk at 2 to 1.25, / factor below 0.75.

    Between them, channels rounded outwards, the mix is linear in the channel index. The bounds are
    the code's constants (LlamaPartNTKScaledRotaryEmbedding), found by experiment. No attention
    factor. An unset factor is the stretch of the length.

    Differs from the paper, arXiv:2309.00071, definition 2, which is ``ntk_by_parts`` and has no
    NTK-aware part and another ramp. For Llama-2 at factor 16 this method gives up to 3.18 times its
    frequencies (channel 35 of 64).
    """
    scale = factor_or_stretch(factor, rope, length)
    plain = rope.inv_freq()
    if scale == 1:
        return Frequencies(plain)  # the sums below would lose a bit here and there
    linear = 1.0 / (scale * rope.tokens_per_radian())
    by_base = ntk.frequencies(rope, length, factor=scale).inv_freq
    kept = by_index(rope, LINEAR, NTK, truncate=True)
    slow = linear * (1 - kept) + by_base * kept
    kept = by_index(rope, SCALED, PLAIN, truncate=True)
    return Frequencies(slow * (1 - kept) + plain * kept)
