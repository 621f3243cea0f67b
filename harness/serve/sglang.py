"""SGLang: by name (linear, llama3, yarn) or as longrope, the attention factor in its own keys."""

from __future__ import annotations

import math
import shlex
from typing import Any

from ropewalk.harness.patching.config import ORIGINAL
from ropewalk.harness.serve._parameters import (
    AT_THE_TOP,
    RopeParameters,
    Target,
    check_one_embedding,
    check_read,
    overriding,
    server_changes,
    torch_frequencies,
)
from ropewalk.scaling.types import Frequencies

NAMED = ("default", "linear", "llama3", "yarn")
# Model types whose class in SGLang 0.5.23 passes no scaling to its rotary embedding (DeepSeek's
# turn every scaling into their own yarn), and those that truncate the base to an integer.
ONLY = dict.fromkeys(
    (
        "deepseek_v3", "deepseek_v32", "gemma", "gemma2", "glm_moe_dsa", "granitemoe", "hy_v3",
        "hy_v4", "mixtral", "olmo", "persimmon", "phi", "stablelm", "starcoder2",
    ),
    "default",
)  # fmt: skip
# What else its yarn reads, with the values that change nothing: a command adds its keys to those of
# the checkpoint.
UNUSED = {"mscale": None, "mscale_all_dim": None, "extrapolation_factor": 1.0}
WHOLE = ("granitemoe", "mixtral", "starcoder2")


def express(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the changes of config.json; its yarn multiplies attn_factor by 0.1 ln s + 1.

    Its longrope rotates the token just behind the original window as the first one, unless a later
    one is in the batch: the original window is the length, and both lists are the same.
    """
    check_one_embedding(target, "SGLang")
    check_read(parameters, target.config.model_type, ONLY)
    if parameters["rope_type"] == "yarn":
        extra = target.frequencies.attention_factor / _yarn_scale(parameters["factor"])
        shipped = target.text.rope_parameters
        unused = {name: value for name, value in UNUSED.items() if name in shipped}
        parameters = {**parameters, "attn_factor": extra, **unused}
    changed = server_changes(parameters, target)
    if parameters["rope_type"] == "longrope":
        for keys in (changed, changed["rope_parameters"]):
            keys |= {ORIGINAL: target.length} if ORIGINAL in keys else {}
    # Its classes for exaone4 and qwen3_next read the base there, others the rotated part of a head.
    new = changed["rope_parameters"]
    return changed | {name: new[name] for name in AT_THE_TOP if name in new}


def computed(changed: dict[str, Any], target: Target) -> Frequencies:
    """Return its frequencies and its attention factor."""
    parameters = dict(changed["rope_parameters"])
    if parameters["rope_type"] == "yarn":
        own = _yarn_scale(parameters["factor"])
        parameters["attention_factor"] = own * parameters["attn_factor"]
    if target.config.model_type in WHOLE:
        parameters["rope_theta"] = int(parameters["rope_theta"])
    return torch_frequencies(parameters, target)


def _yarn_scale(factor: float) -> float:
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def command(changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the command that serves it."""
    line = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 " * (place == target.place)
    line += f"python -m sglang.launch_server --model-path {shlex.quote(place)} "
    line += f"--context-length {target.length}"
    return overriding(line, "--json-model-override-args", changed, place, target)
