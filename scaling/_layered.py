"""Define frequencies layer by layer, for a method that does not treat all layers alike."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from scaling._types import Frequencies


@dataclass(frozen=True, eq=False)
class PerLayerFrequencies:
    """The frequencies of each decoder layer, the first layer (that next to the tokens) first.

    There are as many as ``rope.layers``; those of layers that a method never scales (without a
    rotary embedding, or sliding ones with their own) are not used.
    """

    layers: tuple[Frequencies, ...]

    @property
    def fingerprint(self) -> str:
        """Return a hash of the numbers; where all layers are alike, that of their frequencies."""
        prints = [one.fingerprint for one in self.layers]
        if len(set(prints)) == 1:
            return prints[0]
        return hashlib.sha256(" ".join(["layers", *prints]).encode()).hexdigest()[:16]


def by_layer(layers: Sequence[Frequencies]) -> PerLayerFrequencies | Frequencies:
    """Return frequencies layer by layer; only frequencies where all layers are alike."""
    alike = len({one.fingerprint for one in layers}) == 1
    return layers[0] if alike else PerLayerFrequencies(tuple(layers))
