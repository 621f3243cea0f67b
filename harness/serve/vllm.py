"""vLLM: by name (linear, llama3, yarn) or as longrope with its own keys of the attention factor."""

from __future__ import annotations

import shlex
from typing import Any

from harness.serve._config import (
    changes,
    check_flat,
    check_read,
    overriding,
    torch_frequencies,
    words_of,
)
from harness.serve._types import Asked, Words
from scaling.types import Frequencies

NAMED = ("default", "linear", "llama3", "yarn")
# Model types whose class in vLLM 0.33 reads one rope type: DeepSeek's makes a yarn of its own of
# every scaling, that of gpt_oss builds yarn, without an attention factor, of whatever is given.
ONLY = {
    "deepseek_v3": "default", "deepseek_v32": "default", "glm_moe_dsa": "default",
    "gpt_oss": "yarn",
}  # fmt: skip


def express(words: Words, asked: Asked) -> dict[str, Any]:
    """Return the changes of config.json; raise ValueError for what vLLM 0.33 cannot read."""
    check_flat(asked, "vLLM")
    check_read(words, asked.config.model_type, ONLY)
    reach = words.get("factor", 1) * words.get("original_max_position_embeddings", asked.length)
    if words["rope_type"] == "yarn" and asked.length > reach:
        raise ValueError(f"its yarn has angles for factor x window = {reach:,.0f} tokens only")
    return changes(words, asked)


def computed(changed: dict[str, Any], asked: Asked) -> Frequencies:
    """Return its frequencies, and of longrope the factor of the long list."""
    words = dict(words_of(changed))
    if words["rope_type"] == "longrope":
        words["attention_factor"] = words.get("long_mscale")
    if asked.config.model_type == "gpt_oss":
        words.pop("attention_factor", None)
    return torch_frequencies(words, asked)


def command(changed: dict[str, Any], place: str, asked: Asked) -> str:
    """Return the command that serves it; the overrides replace the whole of rope_parameters."""
    line = f"vllm serve {shlex.quote(place)} --max-model-len {asked.length}"
    if place == asked.place:
        line += f" {overriding('--hf-overrides', changed, asked)}"
    return line + " --trust-remote-code" * asked.trusted
