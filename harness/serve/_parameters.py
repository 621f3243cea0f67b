"""What is exported: a rotation as Hugging Face's configs write it, for every engine.

Also how far what an engine computes is from what was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ropewalk.harness.patching.config import ORIGINAL
from ropewalk.harness.plugins import Plugin
from ropewalk.scaling import native
from ropewalk.scaling.dynamic_ntk import StatefulRope
from ropewalk.scaling.types import Frequencies, Rope, Rotation

RopeParameters = dict[str, Any]  # a scaling as Hugging Face writes it: rope_type and its parameters
NEGLIGIBLE = 1e-12  # radians at the last token: a pair that turns less counts as not turning
STILL = 1e30  # the factor of a pair that does not turn: JSON has no infinity


@dataclass(frozen=True)
class Target:
    """A method's rotation at ``length`` tokens, and the model that it belongs to.

    ``place`` is the model's folder, file or hub name; ``trusted`` says whether code of its
    repository may run.
    """

    method: Plugin
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
        return f"{self.method.label} at {self.length:,} tokens"

    @property
    def text(self) -> Any:
        """Return the config of the text model."""
        return self.config.get_text_config()

    @property
    def nested(self) -> bool:
        """Return whether that config is inside of another, as in an image-text model."""
        return self.text is not self.config

    @property
    def per_layer_type(self) -> bool:
        """Return whether the model has one rotary embedding per layer type."""
        return "rope_theta" not in self.text.rope_parameters

    @property
    def frequencies(self) -> Frequencies:
        """Return the frequencies that an engine has before it reads a text.

        The library's stateful types use the plain ones until an input is longer than the window.
        """
        stateful = self.rotation.stateful
        return Frequencies(self.rope.inv_freq()) if stateful else self.rotation.last

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
        return (
            f"{self.equal} of {self.pairs} frequencies are bit-identical to the measured ones "
            f"(largest difference in units in the last place: {math.ceil(self.units)}); the "
            f"attention factor differs by {self.factor:.2g}"
        )


def forms(target: Target, types: tuple[str, ...]) -> list[RopeParameters]:
    """Return the forms that may be this rotation for an engine, the plainest first.

    ``types`` are the rope types that the engine reads by name. Another base and a single factor are
    found from the numbers, so a user's method or ``on=`` may give them. yarn and llama3 are found
    from the method's name and options. The last form, longrope, holds any frequencies: an engine's
    rule for choosing between its two lists, which differs in each, has no effect on equal ones.
    Raises ValueError where there can be none.
    """
    rope, rotation, measured = target.rope, target.rotation, target.frequencies
    if rotation.needs_code:
        if "bands" in types:
            return [{"rope_type": "bands"}]
        raise ValueError(
            "it has one set of frequencies for all layers and positions, and the method has more. "
            "Use --to hf-code, which writes a modelling file for transformers, or a method of "
            "frequencies, such as yarn"
        )
    if isinstance(rotation, StatefulRope):
        if "dynamic" in types:
            return [{**rotation.rope_parameters, "rope_theta": rope.base}]
        raise ValueError(
            "only transformers has a base that follows the length step by step. Use mode=frozen, "
            "the base of one length"
        )
    if target.per_layer_type and "dynamic" not in types:
        raise ValueError(
            f"{target.config.model_type} has a rotary embedding per layer type, and how other "
            "programs than transformers read a scaling of one of them is not checked. Use --to "
            "transformers"
        )
    method = target.method.module.__name__.rpartition(".")[2]
    options = target.method.arguments if target.method.digest is None else {}
    if method == "native" and (kind := native.shipped_type(rope)) in ("yarn", "llama3"):
        method, options = kind, {"ramp": "code", **native.shipped_options(rope)}
    factor = float(options.get("factor") or rope.stretch(target.length))
    found: list[RopeParameters] = []
    if measured.attention_factor == 1:
        if (base := _base_of(measured.inv_freq, rope)) is not None:
            found.append({"rope_type": "default", "rope_theta": base})
        if (linear := _linear_factor(measured.inv_freq, rope, factor)) is not None:
            found.append({"rope_type": "linear", "rope_theta": rope.base, "factor": linear})
    scaled = {"rope_theta": rope.base, ORIGINAL: rope.trained_length, "factor": factor}
    if method == "yarn" and options.get("ramp") == "code":
        named = {name: options[name] for name in ("beta_fast", "beta_slow", "truncate")}
        named["attention_factor"] = measured.attention_factor
        found.append({"rope_type": "yarn", **scaled, **named})
    bounds = {"llama3": ("low_freq_factor", "high_freq_factor"), "ntk_by_parts": ("alpha", "beta")}
    low, high = (options.get(name, 0) for name in bounds.get(method, ("", "")))
    if low > 0:
        named = {"low_freq_factor": low, "high_freq_factor": high}
        found.append({"rope_type": "llama3", **scaled, **named})
    inv_freq, scale = measured.inv_freq.double(), measured.attention_factor
    slower = 1 / (rope.tokens_per_radian().double() * inv_freq.clamp(min=1e-37))
    factors = torch.where(inv_freq == 0, STILL, slower).tolist()
    longrope = {
        "rope_type": "longrope",
        "rope_theta": rope.base,
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": scale,  # read by transformers; vLLM and SGLang read the next two
        "short_mscale": scale,
        "long_mscale": scale,
        ORIGINAL: rope.trained_length,
        "factor": rope.stretch(target.length),
    }
    kinds, outside = {*types, "longrope"}, _outside(target)
    if measured.inside() is not measured:  # other rope types would not apply the scale
        kinds &= {rope.shipped["rope_type"]}
    return [form | outside for form in [*found, longrope] if form["rope_type"] in kinds]


def _outside(target: Target) -> RopeParameters:
    """Return the keys of what is scaled outside the rotary embedding, beside those of a form.

    Raises ValueError for a scale that the checkpoint does not ship.
    """
    rope, measured = target.rope, target.frequencies
    if measured.inside() is measured:  # Ministral's code needs a number
        plain = {native.BETA: 0.0, ORIGINAL: rope.trained_length}
        return plain if native.BETA in rope.shipped else {}
    if (measured.logit_scale, measured.temperature) != (
        native.logit_scale(rope), native.temperature(rope)
    ):  # fmt: skip
        raise ValueError("no config holds a scale of the logits that the checkpoint does not ship")
    names = ("mscale", "mscale_all_dim", native.BETA)
    return {name: rope.shipped[name] for name in names if name in rope.shipped}


def _base_of(inv_freq: torch.Tensor, rope: Rope) -> float | None:
    """Return the base whose plain frequencies are bit-identical to these, or None."""
    pairs, last, bases = len(inv_freq), float(inv_freq[-1]), [rope.base]
    if pairs > 1 and 0 < last < 1:
        near = torch.tensor(last ** (-pairs / (pairs - 1)))  # float32, as every library computes
        spacing = float(torch.nextafter(near, torch.tensor(math.inf)) - near)
        bases += [float(near) + spacing * step for step in sorted(range(-16, 17), key=abs)]
    return next((base for base in bases if torch.equal(rope.inv_freq(base), inv_freq)), None)


def _linear_factor(inv_freq: torch.Tensor, rope: Rope, expected: float) -> float | None:
    """Return the one factor that divides all plain frequencies, or None."""
    ratios = rope.inv_freq().double() / inv_freq.double()  # infinite where a pair does not turn
    if not (ratios.max() / ratios.min() - 1 <= 1e-6 and 1 < ratios[0] < math.inf):
        return None
    mean = float(ratios.mean())
    return expected if abs(expected / mean - 1) < 1e-6 else mean
