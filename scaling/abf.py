"""ABF, adjusted base frequency: another base at every length (arXiv:2309.16039)."""

import math
from typing import Annotated

from ropewalk.scaling.types import Frequencies, Range, Rope

TRAINING = "the paper trains on at the new base"


def frequencies(
    rope: Rope, length: int, *, base: Annotated[float, Range(1e3, 1e8, log=True)] = 500000.0
) -> Frequencies:
    """Return the plain frequencies of ``base`` in place of the model's own.

    The base is the same at every length, so the model differs from its training inside the trained
    window too: not ``none`` at stretch 1. The paper continues training with it.
    """
    if not (math.isfinite(base) and base > 1):
        raise ValueError(f"base must be above 1, got {base}")
    return Frequencies(rope.inv_freq(base))
