"""SGLang: by name (linear, llama3, yarn) or as longrope, the attention factor in its own keys."""

from __future__ import annotations

import math
import shlex
from typing import Any

from ropewalk.harness.patching.config import ORIGINAL
from ropewalk.harness.serve import _config
from ropewalk.harness.serve._parameters import RopeParameters, Target
from ropewalk.scaling.types import Frequencies

NAMED, OVERRIDES = _config.BY_NAME, True
# Model types whose class in SGLang 0.5.23 passes no scaling to its rotary embedding (DeepSeek's
# turn every scaling into their own yarn).
PLAIN = (
    "deepseek_v3", "deepseek_v32", "gemma", "gemma2", "glm_moe_dsa", "granitemoe", "hy_v3",
    "hy_v4", "mixtral", "olmo", "persimmon", "phi", "stablelm", "starcoder2",
)  # fmt: skip
TYPES = {**_config.INTERLEAVED, **dict.fromkeys(PLAIN, ("default",))}
WHOLE = ("granitemoe", "mixtral", "starcoder2")  # their classes truncate the base to an integer
# What else its yarn reads, with the values that change nothing: a command adds its keys to those of
# the checkpoint.
UNUSED = {"mscale": None, "mscale_all_dim": None, "extrapolation_factor": 1.0}


def express(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the changes of config.json.

    Its longrope rotates the token just behind the original window as the first one, unless a later
    one is in the batch: the original window is the length, and both lists are the same.
    """
    shipped, new = target.text.rope_parameters, dict(parameters)
    if new["rope_type"] == "yarn":
        new["attn_factor"] = target.frequencies.attention_factor / _gain(new["factor"])
        new |= {name: value for name, value in UNUSED.items() if name in shipped}
    changed = _config.served_changes(new, target, TYPES)
    new = changed["rope_parameters"]
    # Its classes for exaone4 and qwen3_next read the base there, others the rotated part of a head.
    changed |= {name: new[name] for name in _config.AT_THE_TOP if name in new}
    if new["rope_type"] == "longrope":
        for keys in (changed, new):
            keys |= {ORIGINAL: target.length} if ORIGINAL in keys else {}
    return changed


def computed(changed: dict[str, Any], target: Target) -> Frequencies:
    """Return its frequencies."""
    parameters = dict(changed["rope_parameters"])
    if parameters["rope_type"] == "yarn":
        parameters["attention_factor"] = _gain(parameters["factor"]) * parameters["attn_factor"]
    if target.config.model_type in WHOLE:
        parameters["rope_theta"] = int(parameters["rope_theta"])
    return _config.served_frequencies(parameters, target)


def _gain(factor: float) -> float:
    """Return what its yarn multiplies attn_factor by."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def command(changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the command that serves it, which allows more tokens than the config where it lies."""
    allowed = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 " * (place == target.place)
    options = _config.options("--json-model-override-args", changed, place, target)
    line = f"python -m sglang.launch_server --model-path {shlex.quote(place)} --context-length"
    return f"{allowed}{line} {target.length} {options}".rstrip()
