"""What the checkpoint ships: its own scaling, as transformers reads it (modeling_rope_utils)."""

from __future__ import annotations

from dataclasses import replace

from scaling import dynamic_ntk, llama3, longrope, none, pi, yarn
from scaling._types import Frequencies, Rope


def frequencies(rope: Rope, length: int) -> Frequencies:
    """Return the frequencies of ``rope.shipped``; a model that ships none is read plain.

    The factor is the shipped one at every length (``dynamic`` alone follows the length, and
    ``longrope`` has two lists), and the window the shipped ``original_max_position_embeddings``,
    where there is one.

    Differs from transformers: ``dynamic`` and ``longrope`` keep no state (see there), and at
    factor 1 yarn and llama3 are exactly plain, where its sums are up to 1.2e-7 off.
    """
    kind = rope.shipped.get("rope_type", rope.shipped.get("type", "default"))
    match kind:
        case "default":
            return none.frequencies(rope, length)
        case "linear":
            return pi.frequencies(rope, length, factor=_required(rope, "factor"))
        case "dynamic":
            return dynamic_ntk.frequencies(rope, length, factor=_required(rope, "factor"))
        case "yarn":
            return _yarn(_in_shipped_window(rope), length)
        case "llama3":
            return llama3.frequencies(
                _in_shipped_window(rope),
                length,
                factor=_required(rope, "factor"),
                low_freq_factor=_required(rope, "low_freq_factor"),
                high_freq_factor=_required(rope, "high_freq_factor"),
            )
        case "longrope":
            return _longrope(_in_shipped_window(rope), length)
    known = "default, linear, dynamic, yarn, llama3 and longrope"
    message = f"native reads rope_type {known}, the checkpoint ships {kind!r}: use another method"
    raise ValueError(message)


def _yarn(rope: Rope, length: int) -> Frequencies:
    """Return yarn as shipped; transformers reads a beta or mscale of 0 as unset."""
    attention_factor = _optional(rope, "attention_factor")
    mscale, mscale_all_dim = _optional(rope, "mscale"), _optional(rope, "mscale_all_dim")
    both = bool(attention_factor is None and mscale and mscale_all_dim)
    return yarn.frequencies(
        rope,
        length,
        factor=_required(rope, "factor"),
        beta_fast=_optional(rope, "beta_fast") or 32.0,
        beta_slow=_optional(rope, "beta_slow") or 1.0,
        truncate=bool(rope.shipped.get("truncate", True)),
        attention_factor=attention_factor,
        mscale=mscale if both else None,
        mscale_all_dim=mscale_all_dim if both else None,
    )


def _longrope(rope: Rope, length: int) -> Frequencies:
    """Return longrope as shipped: with no attention factor of its own, its factor is needed."""
    if _optional(rope, "attention_factor") is None:
        _required(rope, "factor")
    return longrope.frequencies(rope, length)


def _in_shipped_window(rope: Rope) -> Rope:
    """Return the rope with the window that the shipped scaling was made for."""
    window = _optional(rope, "original_max_position_embeddings")
    return rope if window is None else replace(rope, trained_length=int(window))


def _required(rope: Rope, name: str) -> float:
    """Return a number without which the shipped scaling means nothing."""
    value = rope.shipped.get(name)
    if isinstance(value, int | float):
        return value
    message = f"the shipped {name} must be a number, got {value!r}"
    raise ValueError(message)


def _optional(rope: Rope, name: str) -> float | None:
    """Return a number, or None where the shipped scaling has none."""
    return None if rope.shipped.get(name) is None else _required(rope, name)
