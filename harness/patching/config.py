"""The geometry of a rotary embedding, read from a model's config alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from ropewalk.harness.errors import UserError, foreign
from ropewalk.scaling import native
from ropewalk.scaling.types import Rope

LONGEST, WIDEST = 2**31, 2**16  # a trained length in tokens, and channels of a head
WINDOWS = (  # names of the trained length in configs
    "max_position_embeddings",
    "n_positions",
    "seq_length",
    "max_seq_len",
    "context_length",
    "n_ctx",
)
ORIGINAL = "original_max_position_embeddings"
COHERE = ("cohere", "cohere2")
GEOMETRY = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
FULL = "full_attention"  # the scaled slot of a rotary embedding per layer type
TUNING = "attn_temperature_tuning"  # whether Llama 4 scales queries by position
DUAL_CHUNK = native.DUAL_CHUNK  # a key of the config itself, which transformers keeps unread


def is_rotary(config: Any) -> bool:
    """Return whether a config describes a rotary embedding that its model uses."""
    text = config.get_text_config()
    other = getattr(text, "alibi", False) or getattr(text, "position_embedding_type", None)
    return bool(getattr(text, "rope_parameters", None)) and other in (None, False, "rope")


def sliding_window(config: Any) -> int | None:
    """Return the tokens that a sliding layer sees; None where every layer sees all."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"]
    return getattr(text, "sliding_window", None) if "sliding_attention" in kinds else None


def geometry_of(config: Any, trained_length: int | None = None) -> Rope:
    """Return the geometry of a config, with no channels for a model without a rotary embedding.

    The window of such a model is ``trained_length``, or the one in its config, under any of
    ``WINDOWS``. Raises UserError where there is none.
    """
    if is_rotary(config):
        return rope_of(config, trained_length)
    text = config.get_text_config()
    windows = [trained_length, *(getattr(text, name, None) for name in WINDOWS)]
    window = next((w for w in windows if isinstance(w, int) and 1 <= w <= LONGEST), None)
    if window is None:
        raise UserError(
            f"{text.model_type}: the config gives no trained window; give --trained-length"
            " TOKENS, a window of its pretraining."
        )
    return Rope(0, 1.0, window)


def rope_of(config: Any, trained_length: int | None = None) -> Rope:
    """Read the rotary geometry from a model's config alone.

    ``trained_length`` replaces the window of the config, from which a shipped scaling starts still.

    Where a model has a rotary embedding per layer type (Gemma 3, OLMo 3), it is the one of the
    full-attention layers: sliding layers see short distances only, so theirs is never scaled.
    Raises UserError naming the field and the model type where something is missing; no physical
    quantity is guessed.
    """
    if not hasattr(config, "get_text_config"):
        kind = type(config).__name__
        raise UserError(f"rope_of takes a model's config, not {kind}: rope_of(model.config).")
    with foreign(f"the config of this {config.model_type} cannot be read"):
        config = deepcopy(config.get_text_config())
        if getattr(config, "rope_parameters", None):
            config.standardize_rope_params()  # as transformers does where it builds the model
        kind, slot = config.model_type, _slot(config)
        shipped = config.rope_parameters[slot] if slot else config.rope_parameters
        part = _number(kind, "partial_rotary_factor", shipped.get("partial_rotary_factor", 1.0))
        head, proportional = _head_dim(config, slot), shipped.get("rope_type") == "proportional"
        turning = int(part * head // 2) if proportional else None
        rotary_dim = head if proportional else int(head * part)
        if not 2 <= rotary_dim <= WIDEST or rotary_dim % 2:
            raise UserError(
                f"{kind}: rotary_dim must be even, from 2 to {WIDEST}; the config gives"
                f" {rotary_dim}."
            )
        trained = _trained_length(config, shipped)
        scaling = dict(shipped)
        follows = scaling.get("rope_type") == "dynamic" and not scaling.get("alpha")
        if trained_length is not None and follows:
            raise UserError(
                f"{kind}: its dynamic scaling starts from the config's window, {trained:,} tokens;"
                " leave --trained-length out."
            )
        if slot:
            scaling.pop("truncate", None)  # transformers reads it from a flat config only
        if scaling.get("rope_type") == "longrope" and scaling.get("factor") is None:
            # transformers' own rule where a checkpoint names only its two windows
            scaling["factor"] = config.max_position_embeddings / trained
        if scaling.get("mscale_all_dim") and getattr(config, "kv_lora_rank", None):
            scaling[native.LATENT] = scaling.get("rope_type", "default") != "default"
        if getattr(config, TUNING, False):
            scaling |= {name: float(getattr(config, name)) for name in native.TUNED}
        if (dual := getattr(config, DUAL_CHUNK, None)) is not None:
            scaling[DUAL_CHUNK] = dual
        base = _number(kind, "rope_theta", shipped.get("rope_theta"))
        if base <= 0:
            raise UserError(f"{kind}: rope_theta must be above 0, the config gives {base:g}.")
        heads = getattr(config, "num_attention_heads", 1)
        window = trained_length or trained
        layers = config.num_hidden_layers
        return Rope(rotary_dim, base, window, scaling, layers, heads, turning)


def rescaled(config: Any, scaling: Mapping[str, object]) -> Any:
    """Return a copy of a config with the scaling that ``rope_of`` reads replaced."""
    changed = deepcopy(config)
    text = changed.get_text_config()
    slot, parameters = _slot(text), text.rope_parameters
    shipped = parameters[slot] if slot else parameters
    # Ministral's code reads a number for each of these.
    off = {native.BETA: 0.0, ORIGINAL: shipped.get(ORIGINAL)} if native.BETA in shipped else {}
    kept = {key: value for key, value in shipped.items() if key in GEOMETRY}
    new = {**off, **scaling, **kept}
    if new.get("rope_type") == "default" and shipped.get("rope_type") == "proportional":
        new["rope_type"] = "proportional"  # which channels turn is no scaling
    text.rope_parameters = {**parameters, slot: new} if slot else new
    if getattr(text, TUNING, False):
        setattr(text, TUNING, False)
    return changed


def _slot(config: Any) -> str:
    """Return which entry of rope_parameters is scaled: "" where it is one flat entry."""
    kind, shipped = config.model_type, getattr(config, "rope_parameters", None)
    if not shipped:
        raise UserError(
            f"{kind} models have no rotary embedding (no rope_parameters in the config)."
        )
    if "rope_theta" in shipped:
        return ""
    if not shipped.get(FULL):
        slots = ", ".join(str(name) for name, given in shipped.items() if given)
        raise UserError(
            f"{kind}: it has a rotary embedding for {slots}, but none for {FULL}; not supported."
        )
    return FULL


def _head_dim(config: Any, slot: str) -> int:
    """Return the channels of a head in the layers that are scaled; raise UserError for none."""
    try:
        if slot and config.per_layer_config:  # Gemma 4, whose full-attention layers are wider
            config = config.per_layer_config[slot]
        head_dim = getattr(config, "head_dim", None)
        return int(head_dim or config.hidden_size // config.num_attention_heads)
    except (AttributeError, RuntimeError):
        raise UserError(
            f"{config.model_type}: the config gives no head_dim of all layers; not supported."
        ) from None


def _trained_length(config: Any, shipped: Mapping[str, Any]) -> int:
    """Return the window of pretraining in tokens, before any shipped scaling.

    Only transformers' ``dynamic`` type scales from max_position_embeddings. In a checkpoint for
    dual chunk attention (Qwen2.5-1M) this number is the length for serving, not for training. In
    Command R it saves memory: it was trained on 128k tokens, its model_max_length.
    """
    dual = getattr(config, DUAL_CHUNK, None)
    original = shipped.get(ORIGINAL) or (dual.get(ORIGINAL) if isinstance(dual, dict) else None)
    lists = [shipped.get(name) for name in ("short_factor", "long_factor")]
    if lists[0] and lists[0] == lists[1]:
        # With equal lists it selects nothing, and mlx-lm computes the attention factor from it.
        original = getattr(config, ORIGINAL, None) or original
    if original is None or shipped.get("rope_type") == "dynamic":
        original = getattr(config, "max_position_embeddings", None)
        if config.model_type in COHERE and shipped.get("rope_type") == "default":
            original = getattr(config, "model_max_length", None) or original
    if not original:
        raise UserError(f"{config.model_type}: the config has no max_position_embeddings.")
    trained = int(_number(config.model_type, "the trained length", original))
    if not 1 <= trained <= LONGEST:
        raise UserError(
            f"{config.model_type}: the trained length must be from 1 to {LONGEST:,} tokens, it is"
            f" {trained:,}."
        )
    return trained


def _number(kind: str, name: str, given: object) -> float:
    """Return a field of a config as a number; raise UserError if it is none."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise UserError(f"{kind}: {name} must be a number, the config gives {given!r}.")
    return float(given)
