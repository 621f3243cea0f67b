"""Define the types that a method may return."""

from __future__ import annotations

from scaling._bands import Band, Bands
from scaling._served import Served
from scaling._types import Frequencies

Rotation = Frequencies | Bands | Served


def frequencies_of(found: Rotation | Band) -> Frequencies:
    """Return the frequencies in it: of bands those of the last query."""
    return found if isinstance(found, Frequencies) else found.frequencies
