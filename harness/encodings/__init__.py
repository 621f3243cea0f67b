"""The laboratory: one small language model with any position encoding, one file an encoding."""

from ropewalk.harness.encodings.types import Places, Shape

__all__ = ["Places", "Shape"]
