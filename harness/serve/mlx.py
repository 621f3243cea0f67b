"""MLX: by name (linear, llama3, yarn) or as longrope, in the keys that mlx-lm reads."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np
import torch

from ropewalk.harness.patching.config import ORIGINAL
from ropewalk.harness.serve._config import BY_NAME, changes
from ropewalk.harness.serve._parameters import RopeParameters, Target
from ropewalk.scaling import _ramp
from ropewalk.scaling.types import Frequencies, Rope

NAMED, OVERRIDES = BY_NAME, False
# Model types whose files in mlx-lm 0.32 hand rope_scaling, and the whole head, to initialize_rope.
READ = ("exaone4", "granite", "llama", "mistral", "olmo2", "qwen2", "qwen3", "seed_oss")


def express(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the changes of config.json: rope_theta and rope_scaling are the keys it reads.

    Its longrope has the factor sqrt(1 + ln(max / original) / ln(original)) and reads no key for it,
    so ``original`` is the window that gives the measured factor. The model's own window is beside
    the scaling, where mlx-lm does not read it.
    """
    if (kind := target.config.model_type) not in READ:
        raise ValueError(
            f"mlx-lm is not known to read a scaling for {kind}, but for {', '.join(READ)}"
        )
    attention, new = target.frequencies.attention_factor, dict(parameters)
    if new["rope_type"] == "longrope":
        new[ORIGINAL] = target.length ** (1 / attention**2) if attention > 1 else target.length
    if new["rope_type"] == "yarn":
        gain = 0.1 * math.log(new["factor"])
        new |= {"mscale": (attention - 1) / gain if gain else 1.0, "mscale_all_dim": 0.0}
    changed = changes(new, target)
    if new["rope_type"] == "longrope":
        changed[ORIGINAL] = target.rope.trained_length
    new = changed["rope_parameters"]
    return {**changed, "rope_theta": new["rope_theta"], "rope_scaling": new}


def computed(changed: dict[str, Any], target: Target) -> Frequencies:
    """Return its frequencies: float32, of longrope and yarn the inverse of tokens per radian."""
    parameters = changed["rope_scaling"]
    base, pairs = float(parameters["rope_theta"]), target.rope.rotary_dim // 2
    exponents = np.arange(0, 2 * pairs, 2, dtype=np.float32) / np.float32(2 * pairs)
    power, window = np.float32(base) ** exponents, parameters.get(ORIGINAL)
    factor, scale = np.float32(parameters.get("factor", 1.0)), 1.0
    match parameters["rope_type"]:
        case "longrope":
            inv_freq = 1 / (np.array(parameters["long_factor"], dtype=np.float32) * power)
            ratio = math.log(target.length / window) / math.log(window)
            scale = math.sqrt(1 + ratio) if target.length > window else 1.0
        case "yarn":
            slow, fast = parameters["beta_slow"], parameters["beta_fast"]
            geometry = Rope(target.rope.rotary_dim, base, int(window))
            kept = _ramp.by_index(geometry, slow, fast, truncate=True).numpy()
            slower = factor * power
            inv_freq = 1 / ((slower * power) / (slower * kept + power * (1 - kept)))
            scale = 0.1 * parameters["mscale"] * math.log(parameters["factor"]) + 1.0
        case "llama3":
            low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
            ratios = window / (2 * np.pi * power)
            smooth = ((ratios - low) / (high - low)).astype(np.float32).clip(0, 1)
            inv_freq = 1 / (power / ((1 - smooth) / factor + smooth))
        case _:
            step = np.float32(math.log(base)) / np.float32(pairs)
            inv_freq = np.exp(np.arange(0, -pairs, -1, dtype=np.float32) * step)
            inv_freq = inv_freq * np.float32(1 / parameters.get("factor", 1.0))
    return Frequencies(torch.from_numpy(inv_freq.astype(np.float32)), scale)


def command(changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the command that serves it."""
    return f"mlx_lm.server --model {shlex.quote(place)}" + " --trust-remote-code" * target.trusted
