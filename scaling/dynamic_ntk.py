"""Dynamic NTK: NTK-aware at factor * length / trained_length - (factor - 1) (emozilla)."""

from __future__ import annotations

from scaling import ntk
from scaling._types import Frequencies, Rope, factor_or_stretch


def frequencies(rope: Rope, length: int, *, factor: float = 1.0) -> Frequencies:
    """Return ntk at a scale that grows with the length; unscaled inside the trained window.

    This factor is not the ratio of target to trained length; transformers calls it factor, others
    alpha. The scale is 1 + factor * (length / trained_length - 1): with 1 the method is ntk at the
    stretch, and at four windows the factors 1, 2 and 4 scale by 4, 7 and 13.

    Differs from transformers: the length is that of the cell, for the whole forward. There the
    base follows the longest input seen and comes back only below the window: Llama-2 reads 8192
    tokens after 32768 at base 82685 instead of 20221. Its window is ``max_position_embeddings``.
    It takes the length as a float32 tensor, which moves frequencies by up to 4e-6.
    """
    alpha = factor_or_stretch(factor, rope, length)
    if length <= rope.trained_length:
        return ntk.frequencies(rope, length, factor=1.0)
    scale = alpha * length / rope.trained_length - (alpha - 1)
    return ntk.frequencies(rope, length, factor=scale)
