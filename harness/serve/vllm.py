"""vLLM: by name (linear, llama3, yarn) or as longrope with its own keys of the attention factor."""

from __future__ import annotations

from typing import Any

from ropewalk.harness.serve import _servers
from ropewalk.harness.serve._parameters import RopeParameters, Target
from ropewalk.scaling.types import Frequencies


def _spell(parameters: RopeParameters, target: Target) -> RopeParameters:
    if parameters["rope_type"] == "yarn":
        reach = parameters["factor"] * parameters["original_max_position_embeddings"]
        if target.length > reach:
            raise ValueError(f"its yarn has angles for factor x window = {reach:,.0f} tokens only")
    return parameters


SERVER = _servers.Server(
    name="vLLM",
    line="vllm serve {place} --max-model-len {length}",
    flag="--hf-overrides",  # they replace the whole of rope_parameters
    spell=_spell,
    # Model types whose class in vLLM 0.33 reads one rope type: DeepSeek's turn every scaling into
    # their own yarn, and that of gpt_oss always builds a yarn without an attention factor.
    only={
        "deepseek_v3": "default", "deepseek_v32": "default", "glm_moe_dsa": "default",
        "gpt_oss": "yarn",
    },
)  # fmt: skip
NAMED, OVERRIDES = _servers.NAMED, True
express, command = SERVER.express, SERVER.command


def computed(changed: dict[str, Any], target: Target) -> Frequencies:
    """Return its frequencies and its attention factor."""
    parameters = dict(changed["rope_parameters"])
    if target.config.model_type == "gpt_oss":
        parameters.pop("attention_factor", None)
    return _servers.torch_frequencies(parameters, target)
