"""p-RoPE: the fastest share p of the channels rotates, the rest does not (arXiv:2410.06205)."""

from typing import Annotated

from ropewalk.scaling.types import Frequencies, Range, Rope

TRAINING = "the paper pretrains with it"


def frequencies(
    rope: Rope, length: int, *, p: Annotated[float, Range(0.25, 1.0)] = 0.75
) -> Frequencies:
    """Return the plain frequencies, with 0 for all but the floor(p * rotary_dim / 2) fastest.

    p = 1 is ``none`` and 0 encodes no position. The paper trains with the method, and 0.75 was best
    there. The frequencies are the same at every length, so they are not ``none`` at stretch 1.

    Differs from transformers: its ``proportional`` type calls p ``partial_rotary_factor`` and means
    a share of the whole head; here p is a share of the channels that the model rotates. It also
    divides by a ``factor`` if one is shipped. Otherwise the numbers agree to 2.4e-7.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be from 0 to 1, got {p}")
    inv_freq = rope.inv_freq()
    inv_freq[int(p * rope.rotary_dim // 2) :] = 0
    return Frequencies(inv_freq)
