"""method: what it does and where it comes from, in one line."""

from ropewalk.scaling import Frequencies, Rope


def frequencies(rope: Rope, length: int, *, strength: float = 1.0) -> Frequencies:
    """Return one frequency per channel pair: float32, radians per token, fastest first.

    Here NTK-aware: a base that grows with the stretch, max(1, length / trained_length). The same
    rope and length must give the same bits. Keyword-only parameters are the options of the method.
    """
    growth = rope.stretch(length) ** (strength * rope.rotary_dim / (rope.rotary_dim - 2))
    return Frequencies(rope.inv_freq(rope.base * growth))
