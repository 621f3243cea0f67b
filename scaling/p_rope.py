"""p-RoPE: the fastest share p of the channels rotates, the rest does not (arXiv:2410.06205)."""

from typing import Annotated

from scaling.types import Frequencies, Range, Rope

TRAINING = "the paper pretrains with it"


def frequencies(
    rope: Rope, length: int, *, p: Annotated[float, Range(0.25, 1.0)] = 0.75
) -> Frequencies:
    """Return the plain frequencies, with 0 for all but the floor(p * rotary_dim / 2) fastest.

    p = 1 is ``none`` and 0 encodes no position; 0.75 did best in the paper, which trains with it.
    It is the same at every length: not ``none`` at stretch 1.

    Differs from transformers: its ``proportional`` type calls p ``partial_rotary_factor``, a share
    of the whole head (here: of the channels the model rotates), and divides by a ``factor`` if one
    is shipped. Otherwise the numbers agree to 2.4e-7.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be from 0 to 1, got {p}")
    inv_freq = rope.inv_freq()
    inv_freq[int(p * rope.rotary_dim // 2) :] = 0
    return Frequencies(inv_freq)
