"""Define what an engine is asked to express, and what it is given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from scaling.types import Frequencies, PerLayerFrequencies, Rope, Rotation, StatefulRope

Words = dict[str, Any]  # a scaling in Hugging Face's words: rope_type and its parameters
NO_TURN = 1e-12  # radians at the last token: what turns less does not turn


@dataclass(frozen=True)
class Asked:
    """A rotation to be served.

    ``scaling`` is the method's label, ``rotation`` its result at ``length`` tokens; ``place`` is
    the model's folder, file or hub name, ``config`` its own, ``slotted`` whether it has a rotary
    embedding per layer type, ``trusted`` whether its repository's code may run, ``revision`` the
    branch, tag or commit that was asked for on the hub.
    """

    scaling: str
    length: int
    rope: Rope
    rotation: Rotation
    place: str
    config: Any
    slotted: bool
    trusted: bool = False
    revision: str | None = None

    @property
    def told(self) -> str:
        """Return what is served in words: "yarn at 4,096 tokens"."""
        return f"{self.scaling} at {self.length:,} token{'s' * (self.length > 1)}"

    @property
    def frequencies(self) -> Frequencies:
        """Return the rotation; raise ValueError for one that is more than frequencies.

        Those of the library's stateful type are plain until an input is longer than the window.
        """
        if isinstance(self.rotation, Frequencies):
            return self.rotation
        if isinstance(self.rotation, StatefulRope):
            return Frequencies(self.rope.inv_freq())
        if isinstance(self.rotation, PerLayerFrequencies):
            raise ValueError(
                "it has one set of frequencies for all layers, and the method gives each layer its "
                "own. The nearest: --to hf-code, a folder with a modelling file that does it in "
                "transformers; or a method that treats all layers alike, as yarn"
            )
        raise ValueError(
            "it rotates every token to its own position, and the method moves positions or scales "
            "queries. The nearest: --to hf-code, a folder with a modelling file that does it in "
            "transformers; or a method of frequencies, as yarn"
        )

    def distance(self, computed: Frequencies) -> Distance:
        """Return how far an engine's frequencies are from those that were asked for."""
        wanted, found = self.frequencies.inv_freq.double(), computed.inv_freq.double()
        turning = torch.maximum(wanted, found) * self.length > NO_TURN
        unit = 2.0 ** (torch.floor(torch.log2(wanted.clamp(min=2.0**-126))) - 23)
        apart = torch.where(turning, (found - wanted).abs() / unit, 0.0)
        factor = abs(computed.attention_factor - self.frequencies.attention_factor)
        return Distance(float(apart.max()), int((apart == 0).sum()), len(apart), factor)


@dataclass(frozen=True)
class Distance:
    """How far what an engine computes is from what was measured.

    ``units`` is the largest difference of a frequency in units in the last place of float32,
    ``equal`` how many of ``pairs`` frequencies are the same bits; ``factor`` is the difference of
    the attention factor.
    """

    units: float
    equal: int
    pairs: int
    factor: float

    @property
    def close(self) -> bool:
        """Return whether only rounding differs: an engine's own arithmetic takes up to 50 units."""
        return self.units <= 128 and self.factor <= 1e-6

    def __str__(self) -> str:
        left, units = self.pairs - self.equal, math.ceil(self.units)
        text = f"{self.equal if left else 'all'} of {self.pairs} frequencies are the bits that were"
        text += " measured"
        if left:
            other = "other differs" if left == 1 else "others differ"
            text += f", the {other} by at most {units} unit{'s' * (units > 1)} in the last place"
        apart = f"differs by {self.factor:.2g}" if self.factor else "is the same"
        return f"{text}; the attention factor {apart}"
