"""MLX: by name (linear, llama3, yarn) or as longrope, in the keys that mlx-lm reads."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np
import torch

from harness.serve._config import changes, check_flat, words_of
from harness.serve._types import Asked, Words
from scaling import _ramp
from scaling.types import Frequencies, Rope

NAMED = ("default", "linear", "llama3", "yarn")
# Model types whose files in mlx-lm 0.32 hand rope_scaling, and the whole head, to initialize_rope.
READ = ("exaone4", "granite", "llama", "mistral", "olmo2", "qwen2", "qwen3", "seed_oss")


def express(words: Words, asked: Asked) -> dict[str, Any]:
    """Return the changes of config.json: rope_theta and rope_scaling are the keys it reads.

    Its longrope has the attention factor sqrt(1 + ln(max / original) / ln(original)) and reads no
    key for it, so ``original`` is the window that makes it the one wanted. The model's own stands
    beside the scaling, where mlx-lm reads none.
    """
    check_flat(asked, "mlx-lm")
    kind, wanted = asked.config.model_type, asked.frequencies.attention_factor
    if kind not in READ:
        raise ValueError(
            f"mlx-lm is not known to read a scaling for {kind}, but for {', '.join(READ)}"
        )
    if words["rope_type"] == "longrope":
        if wanted < 1:
            raise ValueError(
                f"its longrope has no attention factor below 1, {wanted:.4g} is wanted"
            )
        window = asked.length ** (1 / wanted**2)
        words = {
            **words,
            "original_max_position_embeddings": window if wanted > 1 else asked.length,
        }
    if words["rope_type"] == "yarn":
        words = _yarn(words, wanted)
    changed = changes(words, asked)
    new = words_of(changed)
    if words["rope_type"] == "longrope":
        changed["original_max_position_embeddings"] = asked.rope.trained_length
    return {**changed, "rope_theta": new["rope_theta"], "rope_scaling": new}


def _yarn(words: Words, wanted: float) -> Words:
    """Return yarn with its attention factor in the two keys that mlx-lm reads."""
    if not words.get("truncate", True):
        raise ValueError("its yarn always rounds the bounds of the ramp")
    gain = 0.1 * math.log(words["factor"])
    return {**words, "mscale": (wanted - 1) / gain if gain else 1.0, "mscale_all_dim": 0.0}


def computed(changed: dict[str, Any], asked: Asked) -> Frequencies:
    """Return its frequencies: float32, of longrope and yarn the inverse of tokens per radian."""
    words = changed["rope_scaling"]
    kind, base = words["rope_type"], float(words["rope_theta"])
    pairs = asked.rope.rotary_dim // 2
    power = np.float32(base) ** (
        np.arange(0, 2 * pairs, 2, dtype=np.float32) / np.float32(2 * pairs)
    )
    scale = 1.0
    if kind in ("default", "linear"):
        step = np.float32(math.log(base)) / np.float32(pairs)
        found = np.exp(np.arange(0, -pairs, -1, dtype=np.float32) * step)
        found = found * np.float32(1 / words.get("factor", 1.0))
    elif kind == "longrope":
        found = 1 / (np.array(words["long_factor"], dtype=np.float32) * power)
        window = words["original_max_position_embeddings"]
        ratio = math.log(asked.length / window) / math.log(window)
        scale = math.sqrt(1 + ratio) if asked.length > window else 1.0
    else:
        found, scale = _blended(words, power, asked.rope)
    return Frequencies(torch.from_numpy(found.astype(np.float32)), scale)


def _blended(words: Words, power: Any, rope: Rope) -> tuple[Any, float]:
    """Return the frequencies of yarn and llama3, which mix tokens per radian."""
    factor, window = np.float32(words["factor"]), words["original_max_position_embeddings"]
    geometry = Rope(rope.rotary_dim, float(words["rope_theta"]), int(window))
    if words["rope_type"] == "yarn":
        slow, fast = words["beta_slow"], words["beta_fast"]
        kept = _ramp.by_index(geometry, slow, fast, truncate=True).numpy()
        slower = factor * power
        mixed = (slower * power) / (slower * kept + power * (1 - kept))
        return 1 / mixed, 0.1 * words["mscale"] * math.log(words["factor"]) + 1.0
    waves, low, high = 2 * np.pi * power, words["low_freq_factor"], words["high_freq_factor"]
    smooth = ((window / waves - low) / (high - low)).astype(np.float32).clip(0, 1)
    return 1 / (power / ((1 - smooth) / factor + smooth)), 1.0


def command(changed: dict[str, Any], place: str, asked: Asked) -> str:
    """Return the command that serves it; mlx-lm reads a folder only."""
    trusted = " --trust-remote-code" * asked.trusted
    if place == asked.place:
        return f"mlx_lm.server --model NEW{trusted}, where --out NEW is written"
    return f"mlx_lm.server --model {shlex.quote(place)}{trusted}"
