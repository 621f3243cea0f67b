"""What the checkpoint ships: its own scaling, as transformers reads it (modeling_rope_utils)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType

from ropewalk.scaling import dual_chunk, dynamic_ntk, llama3, longrope, none, ntk, pi, yarn
from ropewalk.scaling.types import Bands, Frequencies, Rope

CODE = "huggingface/transformers"  # of the authors, on GitHub

TYPES: dict[str, ModuleType] = {
    "default": none,
    "ntk_alpha": ntk,
    "linear": pi,
    "proportional": pi,
    "dynamic": dynamic_ntk,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
}
BETA = "llama_4_scaling_beta"  # of Ministral 3 and Mistral 4
TUNED = ("attn_scale", "floor_scale")  # of Llama 4, keys of the config itself
LATENT = "latent"  # whether the keys are latent (MLA): such a model reads mscale_all_dim
DUAL_CHUNK = "dual_chunk_attention_config"  # of Qwen2.5-1M and Qwen3-2507


def bands(rope: Rope, length: int) -> Bands | Frequencies:
    """Return the shipped frequencies (``frequencies``), under the shipped dual chunk attention.

    A checkpoint whose config has ``dual_chunk_attention_config`` is meant to be served with
    ``dual_chunk:form=qwen``, with its ``chunk_size`` and ``local_size``. Differs from transformers,
    which ignores that key and attends to the whole context at true positions: that is ``none``.
    """
    own = frequencies(rope, length)
    if (options := dual_chunk_options(rope)) is None:
        return own
    return dual_chunk.bands(rope, length, form="qwen", **options, on=lambda *_: own)


def dual_chunk_options(rope: Rope) -> dict[str, int] | None:
    """Return the options of ``dual_chunk:form=qwen`` that a checkpoint ships; None for none.

    An absent ``chunk_size`` is 8192 and an absent ``local_size`` 1024, as in vLLM.
    """
    config = rope.shipped.get(DUAL_CHUNK)
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise ValueError(f"the shipped {DUAL_CHUNK} must be a table, got {config!r}")
    size, local = (
        config.get(k, usual) for k, usual in (("chunk_size", 8192), ("local_size", 1024))
    )
    if not (isinstance(size, int) and isinstance(local, int) and 0 < local < size):
        raise ValueError(
            f"the shipped {DUAL_CHUNK} needs whole 0 < local_size < chunk_size, got {local!r} and"
            f" {size!r}"
        )
    return {"chunk": size - local, "largest": size}


def frequencies(rope: Rope, length: int) -> Frequencies:
    """Return the frequencies of ``rope.shipped``; the plain ones where the model ships no scaling.

    The factor is the shipped one at every length (only ``dynamic`` depends on the length, and
    ``longrope`` has two lists), and the window is the shipped ``original_max_position_embeddings``,
    if there is one.

    Differs from transformers: ``dynamic`` and ``longrope`` keep no state (see there), and at
    factor 1 yarn and llama3 are exactly plain, where its sums have errors up to 1.2e-7.
    """
    options = shipped_options(rope)
    kind = shipped_type(rope)
    window = None if kind == "dynamic" else _optional(rope, "original_max_position_embeddings")
    scaled = rope if window is None else replace(rope, trained_length=int(window))
    result: Frequencies = TYPES[kind].frequencies(scaled, length, **options)
    return replace(result, logit_scale=logit_scale(rope), temperature=temperature(rope))


def logit_scale(rope: Rope) -> float:
    """Return the shipped softmax scale of latent attention over the plain one, mu^2.

    mu = 0.1 * mscale_all_dim * ln(factor) + 1 (DeepSeek-V3, modeling_deepseek_v3.py).
    """
    all_dim, factor = (_optional(rope, name) or 0.0 for name in ("mscale_all_dim", "factor"))
    if not rope.shipped.get(LATENT) or not all_dim or factor <= 1:
        return 1.0
    mu = 0.1 * all_dim * math.log(factor) + 1.0
    return mu * mu


def temperature(rope: Rope) -> tuple[float, int] | tuple[float, int, int] | None:
    """Return the shipped scale of queries by position (Ministral 3, Llama 4)."""
    if TUNED[1] in rope.shipped:
        scale, floor = (_required(rope, name) for name in TUNED)
        return scale, int(floor), 1
    if not (beta := _optional(rope, BETA)):
        return None
    return beta, int(_required(rope, "original_max_position_embeddings"))


def ships(rope: Rope) -> bool:
    """Return whether a checkpoint ships a scaling of a supported type."""
    kind = _kind(rope)
    named = isinstance(kind, str) and kind in TYPES and kind != "default"
    if kind == "proportional":
        named = (_optional(rope, "factor") or 1.0) != 1.0
    return named or DUAL_CHUNK in rope.shipped


def _kind(rope: Rope) -> object:
    kind = rope.shipped.get("rope_type", rope.shipped.get("type", "default"))
    # Hunyuan's "dynamic" with an alpha is a fixed base (modeling_hunyuan_v1_dense.py).
    return "ntk_alpha" if kind == "dynamic" and rope.shipped.get("alpha") else kind


def shipped_type(rope: Rope) -> str:
    """Return the shipped rope_type, "default" for none; raise ValueError for an unknown one."""
    kind = _kind(rope)
    if isinstance(kind, str) and kind in TYPES:
        return kind
    *known, last = TYPES
    raise ValueError(
        f"it ships a scaling of rope_type {kind!r}, which is not supported; supported are"
        f" {', '.join(known)} and {last}"
    )


def shipped_options(rope: Rope) -> dict[str, float | bool | None]:
    """Return the options with which the method of the shipped type equals the shipped scaling."""
    match shipped_type(rope):
        case "ntk_alpha":
            return {"factor": _required(rope, "alpha")}
        case "proportional":
            return {"factor": _optional(rope, "factor") or 1.0}
        case "linear" | "dynamic":
            return {"factor": _required(rope, "factor")}
        case "yarn":
            return _yarn(rope)
        case "llama3":
            names = ("factor", "low_freq_factor", "high_freq_factor")
            return {name: _required(rope, name) for name in names}
        case "longrope" if _optional(rope, "attention_factor") is None:
            _required(rope, "factor")  # it makes the attention factor
    return {}


def _yarn(rope: Rope) -> dict[str, float | bool | None]:
    """Return yarn as shipped; transformers reads a beta or mscale of 0 as unset."""
    attention_factor = _optional(rope, "attention_factor")
    mscale, mscale_all_dim = _optional(rope, "mscale"), _optional(rope, "mscale_all_dim")
    both = bool(attention_factor is None and mscale and mscale_all_dim)
    return {
        "factor": _required(rope, "factor"),
        "beta_fast": _optional(rope, "beta_fast") or 32.0,
        "beta_slow": _optional(rope, "beta_slow") or 1.0,
        "truncate": bool(rope.shipped.get("truncate", True)),
        "attention_factor": attention_factor,
        "mscale": mscale if both else None,
        "mscale_all_dim": mscale_all_dim if both else None,
    }


def _required(rope: Rope, name: str) -> float:
    """Return a number that the shipped scaling must have."""
    value = rope.shipped.get(name)
    if isinstance(value, int | float):
        return value
    raise ValueError(f"the shipped {name} must be a number, got {value!r}")


def _optional(rope: Rope, name: str) -> float | None:
    """Return a number of the shipped scaling, None if it is missing."""
    return None if rope.shipped.get(name) is None else _required(rope, name)
