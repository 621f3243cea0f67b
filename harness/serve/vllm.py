"""vLLM: by name (linear, llama3, yarn) or as longrope with its own keys of the attention factor."""

from __future__ import annotations

from ropewalk.harness.patching.config import ORIGINAL
from ropewalk.harness.serve import _servers
from ropewalk.harness.serve._parameters import SECTIONS, RopeParameters, Target

# In models that read images yarn has the ramp of a window four times as long (``positions_factor``
# in its mrope.py), except in these classes of vLLM 0.32 and 0.33.
RAMP_OF_THE_WINDOW = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_vl_moe_text", "qwen3_vl_text")


def _spell(parameters: RopeParameters, target: Target) -> RopeParameters:
    if parameters["rope_type"] == "yarn":
        reach = parameters["factor"] * parameters[ORIGINAL]
        if target.length > reach:
            raise ValueError(f"its yarn has angles for factor x window = {reach:,.0f} tokens only")
    return parameters


def _heard(parameters: RopeParameters, target: Target) -> RopeParameters:
    if target.config.model_type == "gpt_oss":
        parameters.pop("attention_factor", None)
    if parameters["rope_type"] == "yarn" and SECTIONS[0] in parameters:
        parameters[ORIGINAL] *= 1 if target.text.model_type in RAMP_OF_THE_WINDOW else 4
    return parameters


SERVER = _servers.Server(
    name="vLLM",
    line="vllm serve {place} --max-model-len {length}",
    flag="--hf-overrides",  # they replace the whole of rope_parameters
    spell=_spell,
    heard=_heard,
    # Model types whose class in vLLM 0.33 reads one rope type: DeepSeek's turn every scaling into
    # their own yarn, and that of gpt_oss always builds a yarn without an attention factor.
    only={
        "deepseek_v3": "default", "deepseek_v32": "default", "glm_moe_dsa": "default",
        "gpt_oss": "yarn",
    },
)  # fmt: skip
NAMED, OVERRIDES = _servers.NAMED, True
express, computed, command = SERVER.express, SERVER.computed, SERVER.command
