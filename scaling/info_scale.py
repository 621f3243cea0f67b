"""InfoScale: queries are scaled so that the entropy of attention stays (arXiv:2501.08570)."""

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import Bands, Frequencies, Method, Rope, rotation_on

CODE = "HT-NEKO/Information-Entropy-Invariance"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    width: int | None = None,
    layers: str = "all",
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return a method with each query scaled by how many keys it sees, k = m + 1 (equation 12).

    The scale is sqrt((1 - k^(-2/d)) / (1 - L^(-2/d))) for the trained window L and a head of d
    channels, and 1 inside the window. ``width`` is d, by default the rotated channels of a head:
    give it where a head has more. ``layers`` are those of ``log_n``. ``on`` is any method,
    including one that moves positions.

    Differs from the authors' models, which are bidirectional: there every query sees the whole
    length. Their T5 takes the channels of all heads together for d.
    """
    channels = rope.rotary_dim if width is None else width
    if channels < 1:
        raise ValueError(f"width must be 1 channel or more, got {width}")
    seen = torch.arange(1, length + 1, dtype=torch.float64)
    spread = 1 - seen ** (-2 / channels)
    trained = 1 - torch.tensor(max(2, rope.trained_length), dtype=torch.float64) ** (-2 / channels)
    scale = (spread / trained).sqrt().clamp(min=1)
    return rotation_on(on, rope, length).as_bands(length).scaled(scale, layers).plainest()
