"""Define the types that a method may return."""

from __future__ import annotations

from scaling._bands import Band, Bands
from scaling._layered import PerLayerFrequencies
from scaling._served import StatefulRope
from scaling._types import Frequencies

Rotation = Frequencies | PerLayerFrequencies | Bands | StatefulRope


def frequencies_of(found: Rotation | Band) -> Frequencies:
    """Return the frequencies in it: of bands those of the last query, of layers the last one's."""
    if isinstance(found, PerLayerFrequencies):
        return found.layers[-1]
    return found if isinstance(found, Frequencies) else found.frequencies


def needs_code(found: Rotation | None) -> bool:
    """Return whether no config can state it: it moves positions, or its layers are not alike."""
    return isinstance(found, Bands | PerLayerFrequencies)


def sets_of(found: Rotation) -> tuple[Frequencies, ...]:
    """Return all frequencies in it: those of each layer, or of each band."""
    if isinstance(found, PerLayerFrequencies):
        return found.layers
    inner = found.bands if isinstance(found, Bands) else (found,)
    return tuple(frequencies_of(part) for part in inner)
