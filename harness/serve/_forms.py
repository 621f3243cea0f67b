"""The forms of a rotation in Hugging Face's words: by name where it has one, and the carrier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from harness.serve._types import Asked, Words
from scaling import native
from scaling.types import Rope

STILL = 1e30  # the factor of a pair that does not turn: JSON has no infinity
BOUNDS = {"llama3": ("low_freq_factor", "high_freq_factor"), "ntk_by_parts": ("alpha", "beta")}


def named(asked: Asked, method: str, options: Mapping[str, Any]) -> list[Words]:
    """Return the plain forms that may be this rotation, the plainest first.

    Those of another base and of one factor are found from the numbers, so also where a user's
    method or ``on=`` gives them; yarn and llama3 from the method's name and options.
    """
    rope, found = asked.rope, asked.frequencies
    if method == "native" and (kind := native.shipped_type(rope)) in ("yarn", "llama3"):
        method, options = kind, {"ramp": "code", **native.shipped_options(rope)}
    scale = float(options.get("factor") or rope.stretch(asked.length))
    start = {
        "rope_theta": rope.base, "original_max_position_embeddings": rope.trained_length,
        "factor": scale,
    }  # fmt: skip
    forms: list[Words] = []
    if found.attention_factor == 1:
        forms += [{"rope_type": "default", "rope_theta": b} for b in bases(found.inv_freq, rope)]
        linear = {"rope_type": "linear", "rope_theta": rope.base}
        forms += [{**linear, "factor": factor} for factor in factors(found.inv_freq, rope, scale)]
    if method == "yarn" and options.get("ramp") == "code":
        kept = ("beta_fast", "beta_slow", "truncate")
        forms.append({
            "rope_type": "yarn", **start, **{name: options[name] for name in kept},
            "attention_factor": found.attention_factor,
        })  # fmt: skip
    low, high = (options.get(name, 0) for name in BOUNDS.get(method, ("", "")))
    if low > 0:
        forms.append({
            "rope_type": "llama3", **start, "low_freq_factor": low, "high_freq_factor": high,
        })  # fmt: skip
    return forms


def bases(found: torch.Tensor, rope: Rope) -> list[float]:
    """Return the base whose plain frequencies are these bits, in a list; empty where none is."""
    pairs, last = len(found), float(found[-1])
    if torch.equal(rope.inv_freq(), found):
        return [rope.base]
    guess = last ** (-pairs / (pairs - 1)) if pairs > 1 and 0 < last < 1 else 0.0
    if not 1 < guess < math.inf:
        return []
    base = torch.tensor(guess, dtype=torch.float32)  # as every library computes
    spacing = float(torch.nextafter(base, torch.tensor(math.inf)) - base)
    near = [float(base) + spacing * step for step in sorted(range(-16, 17), key=abs)]
    return [one for one in near if one > 1 and torch.equal(rope.inv_freq(one), found)][:1]


def factors(found: torch.Tensor, rope: Rope, scale: float) -> list[float]:
    """Return the one factor that divides all plain frequencies, in a list; ``scale`` if it may."""
    slower = (rope.inv_freq().double() / found.double()) if bool((found > 0).all()) else None
    if slower is None or float(slower.max() / slower.min()) - 1 > 1e-6 or float(slower[0]) <= 1:
        return []
    ratio = float(slower.mean())
    return [scale if abs(scale / ratio - 1) < 1e-6 else ratio]


def carrier(asked: Asked) -> Words:
    """Return the form that any frequencies have: longrope, with both lists equal.

    Equal lists take away the switch between them, which every engine makes by another rule.
    """
    rope, found = asked.rope, asked.frequencies
    wanted = found.inv_freq.double()
    slower = 1 / (rope.tokens_per_radian().double() * wanted.clamp(min=1e-37))
    listed = torch.where(wanted == 0, STILL, slower).tolist()
    scale = found.attention_factor  # vLLM and SGLang read the last two keys, transformers the first
    return {
        "rope_type": "longrope", "rope_theta": rope.base, "short_factor": listed,
        "long_factor": listed, "attention_factor": scale, "short_mscale": scale,
        "long_mscale": scale, "original_max_position_embeddings": rope.trained_length,
        "factor": rope.stretch(asked.length),
    }  # fmt: skip
