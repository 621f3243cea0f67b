"""Transformers: every scaling of frequencies, by its name or as longrope, in config.json."""

from __future__ import annotations

import json
from typing import Any

from ropewalk.harness.encodings._config import EncodingConfig
from ropewalk.harness.models.structure import own_frequencies, without_weights
from ropewalk.harness.patching.config import rescaled
from ropewalk.harness.serve._config import changed_config, changes
from ropewalk.harness.serve._parameters import RopeParameters, Target
from ropewalk.scaling.types import Frequencies

NAMED, OVERRIDES = ("default", "linear", "llama3", "yarn", "dynamic"), True


def express(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the changes of config.json."""
    changed = changes(parameters, target)
    if isinstance(target.config, EncodingConfig):  # an encoding may depend on the trained window
        del changed["max_position_embeddings"]
    if parameters["rope_type"] == "dynamic":  # which scales from this window
        changed["max_position_embeddings"] = target.rope.trained_length
    return changed


def computed(changed: dict[str, Any], target: Target) -> Frequencies:
    """Return the frequencies of the model's own rotary class, built from this config."""
    plain = rescaled(target.config, {"rope_type": "default"})
    model = without_weights(plain, trust_remote_code=target.trusted)
    found = own_frequencies(model, changed_config(changed, target))
    if len(found.inv_freq) != target.rope.rotary_dim // 2:  # as Mistral 4's default type does
        raise ValueError("its class for this type rotates other channels than the model has")
    return found


def command(changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the line of Python that loads it; keys of the config are arguments there."""
    loads, trust = "AutoModelForCausalLM", "trust_remote_code"
    if isinstance(target.config, EncodingConfig):
        loads, trust = "EncodingForCausalLM", "run_code"
    given = {"revision": target.revision} if target.revision else {}
    arguments = {**given, **changed} if place == target.place else {}
    arguments |= {trust: True} if target.trusted else {}
    keys = "".join(f", {name}={value!r}" for name, value in arguments.items())
    return f"{loads}.from_pretrained({json.dumps(place, ensure_ascii=False)}{keys})"
