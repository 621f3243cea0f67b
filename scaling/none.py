"""The plain rotary embedding at the model's base, without any scaling (arXiv:2104.09864)."""

from ropewalk.scaling.types import Frequencies, Rope

CODE = "ZhuiyiTechnology/roformer"  # of the authors, on GitHub


def frequencies(rope: Rope, length: int) -> Frequencies:
    """Return base^(-2i/d) at any length; a scaling that the checkpoint ships is removed."""
    return Frequencies(rope.inv_freq())
