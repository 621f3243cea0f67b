"""SGLang: by name (linear, llama3, yarn) or as longrope, the attention factor in its own keys."""

from __future__ import annotations

import math
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
# Model types whose class in SGLang 0.5.23 hands no scaling to its rotary embedding, or, of
# DeepSeek's, makes a yarn of its own of every one; and those that cut the base to a whole number.
ONLY = dict.fromkeys(
    (
        "deepseek_v3", "deepseek_v32", "gemma", "gemma2", "glm_moe_dsa", "granitemoe", "hy_v3",
        "hy_v4", "mixtral", "olmo", "persimmon", "phi", "stablelm", "starcoder2",
    ),
    "default",
)  # fmt: skip
WHOLE = ("granitemoe", "mixtral", "starcoder2")


def express(words: Words, asked: Asked) -> dict[str, Any]:
    """Return the changes of config.json; its yarn reads attn_factor, on top of 0.1 ln s + 1."""
    check_flat(asked, "SGLang")
    check_read(words, asked.config.model_type, ONLY)
    if words["rope_type"] == "yarn":
        wanted = asked.frequencies.attention_factor
        words = {**words, "attn_factor": wanted / _yarn_scale(words["factor"])}
    return changes(words, asked)


def computed(changed: dict[str, Any], asked: Asked) -> Frequencies:
    """Return its frequencies and the factor that it multiplies with."""
    words = dict(words_of(changed))
    if words["rope_type"] == "longrope":
        words["attention_factor"] = words["long_mscale"]
    if words["rope_type"] == "yarn":
        words["attention_factor"] = _yarn_scale(words["factor"]) * words["attn_factor"]
    if asked.config.model_type in WHOLE:
        words["rope_theta"] = int(words["rope_theta"])
    return torch_frequencies(words, asked)


def _yarn_scale(factor: float) -> float:
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def command(changed: dict[str, Any], place: str, asked: Asked) -> str:
    """Return the command that serves it."""
    line = f"python -m sglang.launch_server --model-path {shlex.quote(place)} "
    line += f"--context-length {asked.length}"
    if place == asked.place:
        line += f" {overriding('--json-model-override-args', changed, asked)}"
    allow = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 " if place == asked.place else ""
    return allow + line + " --trust-remote-code" * asked.trusted
