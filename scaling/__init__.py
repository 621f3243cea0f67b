"""The scaling methods: every public module is one, and the file is its registration.

A method is a function ``frequencies(rope, length, *, options) -> Frequencies``, or ``Layered``,
those of each layer; or where it also moves relative positions ``bands(rope, length, *, options) ->
Bands``. The types are exported here.
"""

from scaling._bands import Band, Bands, by_distance
from scaling._layered import Layered
from scaling._rotation import Rotation
from scaling._served import Served
from scaling._types import Frequencies, Range, Rope

__all__ = [
    "Band",
    "Bands",
    "Frequencies",
    "Layered",
    "Range",
    "Rope",
    "Rotation",
    "Served",
    "by_distance",
]
