"""vLLM: by name (linear, llama3, yarn) or as longrope with its own keys of the attention factor."""

from __future__ import annotations

import shlex
from typing import Any

from ropewalk.harness.serve._parameters import (
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
# Model types whose class in vLLM 0.33 reads one rope type: DeepSeek's turn every scaling into
# their own yarn, and that of gpt_oss always builds a yarn without an attention factor.
ONLY = {
    "deepseek_v3": "default", "deepseek_v32": "default", "glm_moe_dsa": "default",
    "gpt_oss": "yarn",
}  # fmt: skip


def express(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the changes of config.json; raise ValueError for what vLLM 0.33 cannot read."""
    check_one_embedding(target, "vLLM")
    check_read(parameters, target.config.model_type, ONLY)
    reach = parameters.get("factor", 1) * parameters.get(
        "original_max_position_embeddings", target.length
    )
    if parameters["rope_type"] == "yarn" and target.length > reach:
        raise ValueError(f"its yarn has angles for factor x window = {reach:,.0f} tokens only")
    return server_changes(parameters, target)


def computed(changed: dict[str, Any], target: Target) -> Frequencies:
    """Return its frequencies and its attention factor."""
    parameters = dict(changed["rope_parameters"])
    if target.config.model_type == "gpt_oss":
        parameters.pop("attention_factor", None)
    return torch_frequencies(parameters, target)


def command(changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the command that serves it; the overrides replace the whole of rope_parameters."""
    line = f"vllm serve {shlex.quote(place)} --max-model-len {target.length}"
    return overriding(line, "--hf-overrides", changed, place, target)
