"""Transformers: every scaling of frequencies, by its name or as longrope, in config.json."""

from __future__ import annotations

import json
from typing import Any

from harness.encodings._config import EncodingConfig
from harness.models.structure import built
from harness.serve._config import changed_config, changes
from harness.serve._types import Asked, Words
from scaling.types import Frequencies

NAMED = ("default", "linear", "llama3", "yarn", "dynamic")


def express(words: Words, asked: Asked) -> dict[str, Any]:
    """Return the changes of config.json."""
    changed = changes(words, asked)
    if isinstance(asked.config, EncodingConfig):  # whose encodings may act by the trained window
        del changed["max_position_embeddings"]
    if words["rope_type"] == "dynamic":  # which scales from this window
        changed["max_position_embeddings"] = asked.rope.trained_length
    return changed


def computed(changed: dict[str, Any], asked: Asked) -> Frequencies:
    """Return what the model's own rotary class has, built by the library from this config."""
    config = changed_config(changed, asked)
    return built(asked.config, config, trust_remote_code=asked.trusted)


def command(changed: dict[str, Any], place: str, asked: Asked) -> str:
    """Return the line of Python that loads it; the library takes keys of the config there too."""
    loads, trust = "AutoModelForCausalLM", "trust_remote_code"
    if isinstance(asked.config, EncodingConfig):
        loads, trust = "EncodingForCausalLM", "run_code"
    given = {"revision": asked.revision} if asked.revision else {}
    words = {**given, **changed} if place == asked.place else {}
    words |= {trust: True} if asked.trusted else {}
    keys = "".join(f", {name}={value!r}" for name, value in words.items())
    return f"{loads}.from_pretrained({json.dumps(place, ensure_ascii=False)}{keys})"
