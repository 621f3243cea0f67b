"""The scaling methods: every public module is one, and the file is its registration.

A method is a function ``frequencies(rope, length, *, options) -> Frequencies``, or
``PerLayerFrequencies``, those of each layer; or where it also moves relative positions
``bands(rope, length, *, options) -> Bands``. The types are exported here.
"""

from scaling._bands import Band, Bands, by_distance
from scaling._layered import PerLayerFrequencies
from scaling._rotation import Rotation
from scaling._served import StatefulRope
from scaling._types import Frequencies, Range, Rope

__all__ = [
    "Band",
    "Bands",
    "Frequencies",
    "PerLayerFrequencies",
    "Range",
    "Rope",
    "Rotation",
    "StatefulRope",
    "by_distance",
]
