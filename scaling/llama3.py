"""Llama 3.1: slow channels divided, fast ones kept (meta-llama/llama-models, apply_scaling)."""

import math
from typing import Annotated

from ropewalk.scaling.types import Factor, FewTurns, Frequencies, Range, Rope, factor_or_stretch

CODE = "meta-llama/llama-models"  # of the authors, on GitHub


def frequencies(
    rope: Rope,
    length: int,
    *,
    factor: Factor = None,
    low_freq_factor: FewTurns = 1.0,
    high_freq_factor: Annotated[float, Range(1.0, 64.0, log=True)] = 4.0,
) -> Frequencies:
    """Return inv_freq / factor below low_freq_factor turns, inv_freq above high_freq_factor.

    Turns are counted in the trained window. Between the bounds, the mix is linear in turns. An
    unset factor is the stretch of the length.
    """
    low, high = low_freq_factor, high_freq_factor
    if not (math.isfinite(high) and high > low > 0):
        raise ValueError(
            "high_freq_factor must be above low_freq_factor, and both above 0, "
            f"got low_freq_factor={low}, high_freq_factor={high}"
        )
    scale = factor_or_stretch(factor, rope, length)
    plain = rope.inv_freq()
    if scale == 1:
        return Frequencies(plain)  # the sum below would lose a bit here and there
    # From the wavelength and not from rope.turns(), which rounds otherwise than transformers.
    turns = rope.trained_length / (2 * math.pi / plain)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return Frequencies((1 - kept) * plain / scale + kept * plain)
