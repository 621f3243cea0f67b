"""NTK-by-parts: fast channels stay, slow ones are interpolated (arXiv:2309.00071, definition 2)."""

import math

from ropewalk.scaling._ramp import by_turns, mixed
from ropewalk.scaling.types import Factor, FewTurns, Frequencies, Rope, Turns, factor_or_stretch

CODE = "jquesnelle/yarn"  # of the authors, on GitHub


def frequencies(
    rope: Rope,
    length: int,
    *,
    factor: Factor = None,
    alpha: FewTurns = 1.0,
    beta: Turns = 32.0,
    critical: int | None = None,
) -> Frequencies:
    """Keep channels above ``beta`` turns in the trained window; divide those below ``alpha`` turns.

    Slow channels are divided by the factor. In between, the mix is linear in turns. An unset factor
    is the stretch of the length. There is no attention factor; with one, the method is yarn with
    the ramp of its paper. ``critical`` is the first channel, counted from 0, that is divided by the
    whole factor; it replaces the one at ``alpha`` turns (arXiv:2502.20082: 30 and not 35 for Llama
    3).

    Differs from the class of this name in the YaRN repository, which mixes in NTK-aware scaling and
    has other bounds: that is ``ntk_by_parts_code``, with up to 3.18 times these frequencies.
    """
    if not (math.isfinite(beta) and beta > alpha >= 0):
        raise ValueError(
            f"beta must be above alpha, and alpha 0 or more, got alpha={alpha}, beta={beta}"
        )
    scale = factor_or_stretch(factor, rope, length)
    return Frequencies(mixed(rope, scale, by_turns(rope, alpha, beta, critical)))
