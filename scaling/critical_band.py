"""Sliding Critical Band: a band of channels is divided by the factor (ICLR 2026 workshop)."""

from typing import Annotated

from ropewalk.scaling.types import Factor, Frequencies, Range, Rope, factor_or_stretch

Share = Annotated[float | None, Range(0.0, 1.0)]


def frequencies(
    rope: Rope, length: int, *, factor: Factor = None, start: Share = None, end: Share = None
) -> Frequencies:
    """Return theta_i / factor for start <= i / pairs < end, and theta_i for all other channels.

    Unlike in YaRN the slowest channels may stay as they are. The bounds are found on the model:
    ``start`` with the lowest perplexity while ``end`` is 1, then ``end``, by two searches of
    ``ropewalk tune``. An unset ``start`` is the first channel with fewer than 32 turns in the
    trained window, where YaRN begins; an unset ``end`` is 1. An unset factor is the stretch of the
    length.
    """
    pairs = rope.rotary_dim // 2
    many = int((rope.turns() >= 32).sum())
    first = many if start is None else round(start * pairs)
    last = pairs if end is None else round(end * pairs)
    if not 0 <= first <= pairs or not 0 <= last <= pairs:
        raise ValueError(f"start and end must be from 0 to 1, got {start} and {end}")
    scaled = rope.inv_freq()
    scaled[first:last] /= factor_or_stretch(factor, rope, length)
    return Frequencies(scaled)
