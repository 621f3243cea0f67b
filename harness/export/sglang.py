"""SGLang: by name (linear, llama3, yarn) or as longrope, the attention factor in its own keys."""

from __future__ import annotations

import math
from typing import Any

from harness.export import vllm
from harness.export._config import changes, check_flat, one_line, torch_frequencies, words_of
from harness.export._types import Asked, Words
from scaling._types import Frequencies

NAMED = ("default", "linear", "llama3", "yarn")


def express(words: Words, asked: Asked) -> dict[str, Any]:
    """Return the changes of config.json; its yarn reads attn_factor, on top of 0.1 ln s + 1."""
    check_flat(asked, "SGLang")
    if words["rope_type"] == "yarn":
        wanted = asked.frequencies.attention_factor
        return changes({**words, "attn_factor": wanted / _yarn_scale(words["factor"])}, asked)
    return vllm.express(words, asked)


def computed(changed: dict[str, Any], asked: Asked) -> Frequencies:
    """Return its frequencies and the factor that it multiplies with."""
    words = words_of(changed)
    if words["rope_type"] != "yarn":
        return vllm.computed(changed, asked)
    scale = _yarn_scale(words["factor"]) * words["attn_factor"]
    return Frequencies(torch_frequencies(words, asked).inv_freq, scale)


def _yarn_scale(factor: float) -> float:
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def command(changed: dict[str, Any], place: str, asked: Asked) -> str:
    """Return the command that serves it."""
    line = f"python -m sglang.launch_server --model-path {place} --context-length {asked.length}"
    if place == asked.place:
        line += f" --json-model-override-args '{one_line(changed)}'"
    allow = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 " if place == asked.place else ""
    return allow + line
