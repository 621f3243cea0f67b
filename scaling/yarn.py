"""YaRN: by parts, with an attention factor; dynamic with the factor unset (arXiv:2309.00071)."""

import math
from typing import Literal

from ropewalk.scaling._ramp import by_index, by_turns, mixed
from ropewalk.scaling.types import Factor, FewTurns, Frequencies, Rope, Turns, factor_or_stretch

CODE = "jquesnelle/yarn"  # of the authors, on GitHub


def frequencies(
    rope: Rope,
    length: int,
    *,
    factor: Factor = None,
    beta_fast: Turns = 32.0,
    beta_slow: FewTurns = 1.0,
    truncate: bool = True,
    ramp: Literal["code", "paper"] = "code",
    critical: int | None = None,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
) -> Frequencies:
    """Keep channels that turn often in the trained window, and divide the slow ones by the factor.

    Channels above ``beta_fast`` turns in the trained window keep their frequency. Channels below
    ``beta_slow`` turns are divided by the factor. In between, ``ramp`` chooses how the two are
    mixed: ``code`` is linear in the channel index, as in the reference code and transformers,
    between channels rounded outwards if ``truncate``; ``paper`` is linear in turns. An unset factor
    is the stretch of the length.

    ``mscale`` and ``mscale_all_dim`` make the attention factor the ratio of
    0.1 * mscale * ln(factor) + 1 for each of them. A given ``attention_factor`` holds at every
    length. ``critical`` is the first channel, counted from 0, that is divided by the whole factor;
    it replaces the one at ``beta_slow``. LongRoPE2's (arXiv:2502.20082, YaRN-rcd) for Llama 3 is 30
    and not 35.

    Differs from the paper, whose ramp is linear in turns (``ramp="paper"``). For Llama-2 at factor
    16 the paper's ramp gives up to 3.04 times lower frequencies (channel 38 of 64).
    """
    if not (math.isfinite(beta_fast) and beta_fast > beta_slow > 0):
        raise ValueError(
            "beta_fast must be above beta_slow, and both above 0, "
            f"got beta_fast={beta_fast}, beta_slow={beta_slow}"
        )
    scale = factor_or_stretch(factor, rope, length)
    if ramp == "code":
        kept = by_index(rope, beta_slow, beta_fast, truncate=truncate, critical=critical)
    elif ramp == "paper" and truncate:
        kept = by_turns(rope, beta_slow, beta_fast, critical)
    else:
        raise ValueError(
            f"ramp is code or paper, truncate=False for code only, got {ramp} and {truncate}"
        )
    attention = _attention(scale, attention_factor, mscale, mscale_all_dim)
    return Frequencies(mixed(rope, scale, kept), attention)


def _attention(
    scale: float, given: float | None, mscale: float | None, mscale_all_dim: float | None
) -> float:
    """Return the attention factor of a scale of 1 or more."""
    if mscale is None and mscale_all_dim is None:
        return 0.1 * math.log(scale) + 1.0 if given is None else given
    if given is None and mscale and mscale_all_dim:
        logarithm = math.log(scale)
        return (0.1 * mscale * logarithm + 1.0) / (0.1 * mscale_all_dim * logarithm + 1.0)
    raise ValueError(
        "give attention_factor, or mscale and mscale_all_dim (not 0), or none of them, "
        f"got {given}, {mscale} and {mscale_all_dim}"
    )
