"""What is exported, and how far what an engine computes is from what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from scaling.types import Frequencies, Rope, Rotation

RopeParameters = dict[str, Any]  # a scaling as Hugging Face writes it: rope_type and its parameters
NEGLIGIBLE = 1e-12  # radians at the last token: a pair that turns less counts as not turning


@dataclass(frozen=True)
class Target:
    """A rotation to export and the model that it belongs to.

    Attributes:
        scaling: the method's label.
        rotation: the method's result at ``length`` tokens.
        place: the model's folder, file or hub name.
        trusted: whether code of its repository may run.
        revision: the requested branch, tag or commit on the hub.
    """

    scaling: str
    length: int
    rope: Rope
    rotation: Rotation
    place: str
    config: Any
    trusted: bool = False
    revision: str | None = None

    @property
    def label(self) -> str:
        """Return what is exported in words: "yarn at 4,096 tokens"."""
        return f"{self.scaling} at {self.length:,} token{'s' * (self.length > 1)}"

    @property
    def text(self) -> Any:
        """Return the config of the text model, which may be inside of another."""
        return self.config.get_text_config()

    @property
    def per_layer_type(self) -> bool:
        """Return whether the model has one rotary embedding per layer type."""
        return "rope_theta" not in self.text.rope_parameters

    @property
    def frequencies(self) -> Frequencies:
        """Return the frequencies; raise ValueError for a rotation that is more than these.

        The library's stateful types use the plain frequencies until an input is longer than the
        window.
        """
        if not self.rotation.needs_code:
            stateful = self.rotation.stateful
            return Frequencies(self.rope.inv_freq()) if stateful else self.rotation.last
        if self.rotation.per_layer:
            does, method = "has one set of frequencies for all layers", "gives each layer its own"
            other = "that treats all layers alike"
        else:
            does, other = "rotates every token to its own position", "of frequencies"
            method = "moves positions or scales queries"
        raise ValueError(
            f"it {does}, and the method {method}. Use --to hf-code, which writes a modelling file "
            f"for transformers, or a method {other}, such as yarn"
        )

    def distance(self, computed: Frequencies) -> Distance:
        """Return how far an engine's frequencies are from the measured ones."""
        measured, other = self.frequencies.inv_freq.double(), computed.inv_freq.double()
        turning = torch.maximum(measured, other) * self.length > NEGLIGIBLE
        unit = 2.0 ** (torch.floor(torch.log2(measured.clamp(min=2.0**-126))) - 23)
        units = torch.where(turning, (other - measured).abs() / unit, 0.0)
        factor = abs(computed.attention_factor - self.frequencies.attention_factor)
        return Distance(float(units.max()), int((units == 0).sum()), len(units), factor)


@dataclass(frozen=True)
class Distance:
    """How far what an engine computes is from what was measured.

    ``units`` is the largest difference of a frequency in units in the last place of float32,
    ``equal`` how many of ``pairs`` frequencies are bit-identical; ``factor`` is the difference of
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
        text = f"{self.equal if left else 'all'} of {self.pairs} frequencies are bit-identical to "
        text += "the measured ones"
        if left:
            other = "other differs" if left == 1 else "others differ"
            text += f", the {other} by at most {units} unit{'s' * (units > 1)} in the last place"
        same = f"differs by {self.factor:.2g}" if self.factor else "is the same"
        return f"{text}; the attention factor {same}"
