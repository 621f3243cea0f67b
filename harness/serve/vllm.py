"""vLLM: by name (linear, llama3, yarn) or as longrope with its own keys of the attention factor."""

from __future__ import annotations

import shlex
from typing import Any

from ropewalk.harness.patching.config import ORIGINAL
from ropewalk.harness.serve import _config
from ropewalk.harness.serve._parameters import RopeParameters, Target
from ropewalk.scaling.types import Frequencies

NAMED, OVERRIDES = _config.BY_NAME, True
# Model types whose class in vLLM 0.33 reads few rope types: DeepSeek's turn every scaling into
# their own yarn, and that of gpt_oss always builds a yarn without an attention factor.
TYPES = {
    **_config.INTERLEAVED,
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm_moe_dsa"), ("default",)),
    "gpt_oss": ("yarn",),
}
# In models that read images yarn has the ramp of a window four times as long (``positions_factor``
# in its mrope.py), except in these classes of vLLM 0.32 and 0.33.
RAMP_OF_THE_WINDOW = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_vl_moe_text", "qwen3_vl_text")


def express(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the changes of config.json."""
    if parameters["rope_type"] == "yarn":
        reach = parameters["factor"] * parameters[ORIGINAL]
        if target.length > reach:
            raise ValueError(f"its yarn has angles for factor x window = {reach:,.0f} tokens only")
    return _config.served_changes(parameters, target, TYPES)


def computed(changed: dict[str, Any], target: Target) -> Frequencies:
    """Return its frequencies."""
    parameters = dict(changed["rope_parameters"])
    if target.config.model_type == "gpt_oss":
        del parameters["attention_factor"]
    if parameters["rope_type"] == "yarn" and _config.SECTIONS[0] in parameters:
        parameters[ORIGINAL] *= 1 if target.text.model_type in RAMP_OF_THE_WINDOW else 4
    return _config.served_frequencies(parameters, target)


def command(changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the command that serves it; the option replaces the whole of rope_parameters."""
    options = _config.options("--hf-overrides", changed, place, target)
    line = f"vllm serve {shlex.quote(place)} --max-model-len {target.length} {options}"
    return line.rstrip()
