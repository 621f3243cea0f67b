"""llama.cpp: by name (linear, yarn, another base) or as rope_freqs, in a rewritten GGUF file."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np
import torch

from harness.models.gguf import is_gguf
from harness.serve._config import check_flat
from harness.serve._types import Asked, Words
from scaling.types import Frequencies

NAMED = ("default", "linear", "yarn")
READ = ("exaone", "granite", "llama", "mistral", "mistral3")  # that load the tensor of factors
TENSOR = "rope_freqs.weight"
SCALING, BASE, WINDOW = "rope.scaling.", "rope.freq_base", "context_length"
FLAGS = {
    BASE: "--rope-freq-base", f"{SCALING}type": "--rope-scaling", f"{SCALING}factor":
    "--rope-scale", f"{SCALING}original_context_length": "--yarn-orig-ctx",
    f"{SCALING}yarn_beta_fast": "--yarn-beta-fast", f"{SCALING}yarn_beta_slow":
    "--yarn-beta-slow",
}  # fmt: skip


def express(words: Words, asked: Asked) -> dict[str, Any]:
    """Return the keys of the file, less the architecture before each, and the tensor of factors."""
    check_flat(asked, "llama.cpp")
    kind, wanted = words["rope_type"], asked.frequencies.attention_factor
    keys = {WINDOW: asked.length, BASE: float(words["rope_theta"]), f"{SCALING}type": "none"}
    if kind == "linear":
        return {**keys, f"{SCALING}type": "linear", f"{SCALING}factor": words["factor"]}
    if kind == "yarn":
        if not words.get("truncate", True):
            raise ValueError("its yarn always rounds the bounds of the ramp")
        own = 1 + 0.1 * math.log(words["factor"])  # which it always multiplies with
        return {
            **keys, f"{SCALING}type": "yarn", f"{SCALING}factor": words["factor"],
            f"{SCALING}original_context_length": words["original_max_position_embeddings"],
            f"{SCALING}yarn_beta_fast": float(words.get("beta_fast") or 32.0),
            f"{SCALING}yarn_beta_slow": float(words.get("beta_slow") or 1.0),
            f"{SCALING}attn_factor": wanted / own,
        }  # fmt: skip
    if kind == "longrope":
        if asked.config.model_type not in READ:
            raise ValueError(
                f"it loads {TENSOR} for {', '.join(READ)}, not for {asked.config.model_type}"
            )
        keys = {**keys, f"{SCALING}attn_factor": wanted, TENSOR: words["long_factor"]}
    return keys


def computed(changed: dict[str, Any], asked: Asked) -> Frequencies:
    """Return the angles of position 1 in its float32: each channel is the last one times a step."""
    one, pairs = np.float32(1), asked.rope.rotary_dim // 2
    base = np.float32(changed[BASE])
    step, plain = np.float32(float(base) ** (-1 / pairs)), [one]
    for _ in range(pairs - 1):
        plain.append(plain[-1] * step)
    found = np.array(plain) / np.array(changed.get(TENSOR, [1.0]), dtype=np.float32)
    scale = changed.get(f"{SCALING}attn_factor", 1.0)
    slow = one / np.float32(changed.get(f"{SCALING}factor", 1.0))
    if changed[f"{SCALING}type"] == "yarn":
        first, last = (
            pairs * math.log(changed[f"{SCALING}original_context_length"] / (turns * 2 * math.pi))
            / math.log(base)
            for turns in (changed[f"{SCALING}yarn_beta_fast"], changed[f"{SCALING}yarn_beta_slow"])
        )  # fmt: skip
        first, last = max(0, math.floor(first)), min(2 * pairs - 1, math.ceil(last))
        ramp = (np.arange(pairs, dtype=np.float32) - first) / np.float32(max(0.001, last - first))
        kept = 1 - ramp.clip(0, 1)
        found = found * slow * (1 - kept) + found * kept
        scale *= 1 + 0.1 * math.log(changed[f"{SCALING}factor"])
    else:
        found = found * slow
    return Frequencies(torch.from_numpy(found.astype(np.float32)), scale)


def command(changed: dict[str, Any], place: str, asked: Asked) -> str:
    """Return the command that serves it: a rewritten file, or flags where they can say it all."""
    if not is_gguf(asked.place):
        return (
            f"llama-server -m NEW.gguf -c {asked.length}, where --out NEW.gguf is written of the "
            "model's GGUF file; convert_hf_to_gguf.py of llama.cpp makes one"
        )
    line = f"llama-server -m {shlex.quote(place)} -c {asked.length}"
    if place != asked.place:
        return line
    if TENSOR in changed or changed.get(f"{SCALING}attn_factor", 1.0) != 1:
        return f"llama-server -m NEW.gguf -c {asked.length}, where --out NEW.gguf is written"
    flags = (f" {flag} {changed[key]}" for key, flag in FLAGS.items() if key in changed)
    return line + "".join(flags)
