"""The scaling methods: every public module is one, and the file is its registration.

A method is a function ``frequencies(rope, length, *, options) -> Frequencies``, or
``PerLayerFrequencies``, those of each layer; or where it also moves relative positions
``bands(rope, length, *, options) -> Bands``. The types are exported here.
"""

from scaling.types import (
    Band,
    Bands,
    Frequencies,
    PerLayerFrequencies,
    Range,
    Rope,
    Rotation,
    StatefulRope,
    by_distance,
)

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
