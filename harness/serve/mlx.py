"""MLX: by name (linear, llama3, yarn) or as longrope, in the keys that mlx-lm reads."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np
import torch

from ropewalk.harness.serve._parameters import RopeParameters, Target, changes, check_one_embedding
from ropewalk.scaling import _ramp
from ropewalk.scaling.types import Frequencies, Rope

NAMED = ("default", "linear", "llama3", "yarn")
# Model types whose files in mlx-lm 0.32 hand rope_scaling, and the whole head, to initialize_rope.
READ = ("exaone4", "granite", "llama", "mistral", "olmo2", "qwen2", "qwen3", "seed_oss")


def express(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the changes of config.json: rope_theta and rope_scaling are the keys it reads.

    Its longrope has the attention factor sqrt(1 + ln(max / original) / ln(original)) and reads no
    key for it, so ``original`` is the window that gives the measured factor. The model's own window
    is beside the scaling, where mlx-lm does not read it.
    """
    check_one_embedding(target, "mlx-lm")
    kind, attention = target.config.model_type, target.frequencies.attention_factor
    if kind not in READ:
        raise ValueError(
            f"mlx-lm is not known to read a scaling for {kind}, but for {', '.join(READ)}"
        )
    if parameters["rope_type"] == "longrope":
        if attention < 1:
            raise ValueError(
                f"its longrope has no attention factor below 1, and the method's is {attention:.4g}"
            )
        window = target.length ** (1 / attention**2)
        parameters = {
            **parameters,
            "original_max_position_embeddings": window if attention > 1 else target.length,
        }
    if parameters["rope_type"] == "yarn":
        parameters = _yarn(parameters, attention)
    changed = changes(parameters, target)
    new = changed["rope_parameters"]
    if parameters["rope_type"] == "longrope":
        changed["original_max_position_embeddings"] = target.rope.trained_length
    return {**changed, "rope_theta": new["rope_theta"], "rope_scaling": new}


def _yarn(parameters: RopeParameters, attention: float) -> RopeParameters:
    """Return yarn with its attention factor in the two keys that mlx-lm reads."""
    if not parameters.get("truncate", True):
        raise ValueError("its yarn always rounds the bounds of the ramp")
    gain = 0.1 * math.log(parameters["factor"])
    return {**parameters, "mscale": (attention - 1) / gain if gain else 1.0, "mscale_all_dim": 0.0}


def computed(changed: dict[str, Any], target: Target) -> Frequencies:
    """Return its frequencies: float32, of longrope and yarn the inverse of tokens per radian."""
    parameters = changed["rope_scaling"]
    kind, base = parameters["rope_type"], float(parameters["rope_theta"])
    pairs = target.rope.rotary_dim // 2
    power = np.float32(base) ** (
        np.arange(0, 2 * pairs, 2, dtype=np.float32) / np.float32(2 * pairs)
    )
    scale = 1.0
    if kind in ("default", "linear"):
        step = np.float32(math.log(base)) / np.float32(pairs)
        inv_freq = np.exp(np.arange(0, -pairs, -1, dtype=np.float32) * step)
        inv_freq = inv_freq * np.float32(1 / parameters.get("factor", 1.0))
    elif kind == "longrope":
        inv_freq = 1 / (np.array(parameters["long_factor"], dtype=np.float32) * power)
        window = parameters["original_max_position_embeddings"]
        ratio = math.log(target.length / window) / math.log(window)
        scale = math.sqrt(1 + ratio) if target.length > window else 1.0
    else:
        inv_freq, scale = _blended(parameters, power, target.rope)
    return Frequencies(torch.from_numpy(inv_freq.astype(np.float32)), scale)


def _blended(parameters: RopeParameters, power: Any, rope: Rope) -> tuple[Any, float]:
    """Return the frequencies of yarn and llama3, which mix tokens per radian."""
    factor = np.float32(parameters["factor"])
    window = parameters["original_max_position_embeddings"]
    geometry = Rope(rope.rotary_dim, float(parameters["rope_theta"]), int(window))
    if parameters["rope_type"] == "yarn":
        slow, fast = parameters["beta_slow"], parameters["beta_fast"]
        kept = _ramp.by_index(geometry, slow, fast, truncate=True).numpy()
        slower = factor * power
        mixed = (slower * power) / (slower * kept + power * (1 - kept))
        return 1 / mixed, 0.1 * parameters["mscale"] * math.log(parameters["factor"]) + 1.0
    waves = 2 * np.pi * power
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    smooth = ((window / waves - low) / (high - low)).astype(np.float32).clip(0, 1)
    return 1 / (power / ((1 - smooth) / factor + smooth)), 1.0


def command(changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the command that serves it; mlx-lm reads a folder only."""
    trusted = " --trust-remote-code" * target.trusted
    if place == target.place:
        return f"mlx_lm.server --model NEW{trusted}, with NEW written by --out NEW"
    return f"mlx_lm.server --model {shlex.quote(place)}{trusted}"
