"""SGLang: by name (linear, llama3, yarn) or as longrope, the attention factor in its own keys."""

from __future__ import annotations

import math
from typing import Any

from ropewalk.harness.patching.config import ORIGINAL
from ropewalk.harness.serve import _servers
from ropewalk.harness.serve._parameters import AT_THE_TOP, RopeParameters, Target

# What else its yarn reads, with the values that change nothing: a command adds its keys to those of
# the checkpoint.
UNUSED = {"mscale": None, "mscale_all_dim": None, "extrapolation_factor": 1.0}
WHOLE = ("granitemoe", "mixtral", "starcoder2")  # their classes truncate the base to an integer


def _gain(factor: float) -> float:
    """Return what its yarn multiplies attn_factor by."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def _spell(parameters: RopeParameters, target: Target) -> RopeParameters:
    if parameters["rope_type"] != "yarn":
        return parameters
    extra = target.frequencies.attention_factor / _gain(parameters["factor"])
    unused = {k: value for k, value in UNUSED.items() if k in target.text.rope_parameters}
    return {**parameters, "attn_factor": extra, **unused}


def _heard(parameters: RopeParameters, target: Target) -> RopeParameters:
    if parameters["rope_type"] == "yarn":
        parameters["attention_factor"] = _gain(parameters["factor"]) * parameters["attn_factor"]
    if target.config.model_type in WHOLE:
        parameters["rope_theta"] = int(parameters["rope_theta"])
    return parameters


SERVER = _servers.Server(
    name="SGLang",
    line="python -m sglang.launch_server --model-path {place} --context-length {length}",
    flag="--json-model-override-args",
    spell=_spell,
    heard=_heard,
    # Model types whose class in SGLang 0.5.23 passes no scaling to its rotary embedding (DeepSeek's
    # turn every scaling into their own yarn).
    only=dict.fromkeys(
        (
            "deepseek_v3", "deepseek_v32", "gemma", "gemma2", "glm_moe_dsa", "granitemoe", "hy_v3",
            "hy_v4", "mixtral", "olmo", "persimmon", "phi", "stablelm", "starcoder2",
        ),
        "default",
    ),
    # Its classes for exaone4 and qwen3_next read the base there, others the rotated part of a head.
    beside=AT_THE_TOP,
)  # fmt: skip
NAMED, OVERRIDES = _servers.NAMED, True
computed = SERVER.computed


def express(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the changes of config.json; raise ValueError for what SGLang cannot read.

    Its longrope rotates the token just behind the original window as the first one, unless a later
    one is in the batch: the original window is the length, and both lists are the same.
    """
    changed = SERVER.express(parameters, target)
    if parameters["rope_type"] == "longrope":
        for keys in (changed, changed["rope_parameters"]):
            keys |= {ORIGINAL: target.length} if ORIGINAL in keys else {}
    return changed


def command(changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the command that serves it, which allows more tokens than the config where it lies."""
    allowed = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 " * (place == target.place)
    return allowed + SERVER.command(changed, place, target)
