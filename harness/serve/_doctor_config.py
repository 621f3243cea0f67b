"""Does a checkpoint's config mean what its author thinks: what the library reads of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from harness.errors import UserError
from harness.methods.findings import Finding
from harness.models.config import read_raw
from harness.models.gguf import is_gguf
from harness.models.structure import Layers, built
from harness.patching.config import FULL, rope_of
from harness.plugins import Plugin
from scaling.types import Frequencies, Rope, Rotation

ABOUT = "config"
BASES = ("rotary_emb_base", "rope_base", "theta", "rotary_base")  # other names of rope_theta
WINDOWED = ("llama3", "yarn", "longrope")  # types that scale from a window of their own
# Keys that bear on the attention factor alone: idle beside one that gives it.
OF_THE_FACTOR = (
    "attn_factor", "factor", "long_mscale", "mscale", "mscale_all_dim", "short_mscale",
)  # fmt: skip
UNSEEN = (  # that no number of a rotary module shows, or not at every length
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned", "short_factor",
    "long_factor",
)  # fmt: skip
WINDOW = "original_max_position_embeddings"
# Bounds of a ramp may be past its ends, where some changes are idle: of a short window by far.
TIMES = (2.0, 0.5, 8.0, 0.125, 1 / 64)


def config_findings(where: str, commit: str | None, config: Any, trusted: bool) -> list[Finding]:
    """Return the faults of a config that was read, or one line that it has none."""
    text = config.get_text_config()
    raw = config.to_dict() if is_gguf(where) else read_raw(where, commit)
    raw = raw.get("text_config", raw) if text is not config else raw
    faults = [
        *_missing(raw, text),
        *_twice(raw),
        *_unread(raw, text, trusted),
        *_by_length(_scaling(raw), text.model_type),
    ]
    if faults:
        return [Finding(ABOUT, "failed", fault) for fault in faults]
    rope = rope_of(config)
    said = f"base {rope.base:g}, trained window {rope.trained_length:,} tokens"
    kind = rope.shipped.get("rope_type", "default")
    read = "ships no scaling" if kind == "default" else f"ships {kind}, every key of it is read"
    return [Finding(ABOUT, "passed", f"{said}; {read}")]


def layer_findings(
    layers: Layers, label: str, rotation: Rotation, *, scaled: bool
) -> list[Finding]:
    """Return on which layers a scaling acts; a fault where no layer that sees far rotates."""
    rotated, bare = layers.rotated, layers.plain.total()
    total = rotated.total() + bare
    if scaled and not rotated["full"] and layers.plain["full"]:
        fault = (
            "no layer that sees the whole context has a rotary embedding: a scaling changes sliding"
            " layers alone, which see no distance beyond their window"
        )
        return [Finding("layers", "failed", fault)]
    acts = rotated["full"] if layers.apart else rotated.total()
    what = f"{label} acts" if scaled else "a scaling would act"
    proof = "the patch is proved on the output"
    if rotation.stateful:
        proof = "the model's own class computes it"
    told = f"{what} on {acts} of {total} attention layers; {proof}"
    return [Finding("layers", "passed", told)]


def plain_finding(method: Plugin, rope: Rope, length: int) -> Finding:
    """Say that a method is the plain model at a length, and how to name what is meant."""
    longer = ["a longer --length"] if length <= rope.trained_length else []
    named = [*longer, *(["another factor="] if "factor" in method.options else [])]
    told = f"at {length:,} tokens {method.label} is the plain model"
    if "factor" in method.options:
        told += ": its factor is 1 there"
    return Finding("layers", "note", told + (f"; name {' or '.join(named)}" if named else ""))


def _scaling(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scaling in a config.json, of full attention where it is one per layer type."""
    given = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    given = given.get(FULL, given) if isinstance(given, dict) else {}
    return dict(given or {})


def _missing(raw: Mapping[str, Any], text: Any) -> Iterator[str]:
    """Yield what is not in a config.json and is filled in without a word."""
    scaling = _scaling(raw)
    named = [name for name in BASES if isinstance(raw.get(name), int | float)]
    given = "rope_theta" in raw or "rope_theta" in scaling
    if not given and not any(_is_base(name, raw, text) for name in named):
        base = rope_of(text).base
        other = [f"{name} {raw[name]}" for name in named]
        beside = f", and {other[0]}, which is not read" if other else ""
        yield (
            f"config.json has no rope_theta{beside}: transformers takes {base:g}, its default for "
            f"{text.model_type}, and other engines theirs; write rope_theta"
        )
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in WINDOWED and not (scaling.get(WINDOW) or raw.get(WINDOW)):
        yield (
            f"its {kind} scaling has no {WINDOW}: transformers scales from "
            f"max_position_embeddings, {text.max_position_embeddings:,} tokens; write the window "
            "of pretraining"
        )


def _is_base(name: str, raw: Mapping[str, Any], text: Any) -> bool:
    """Return whether the library takes the base from this key, as GPT-NeoX's class does."""
    changed = type(text).from_dict({**deepcopy(dict(raw)), name: 2 * raw[name]})
    return bool(rope_of(changed).base != rope_of(text).base)


def _twice(raw: Mapping[str, Any]) -> Iterator[str]:
    """Yield where two keys say different things and one wins."""
    old, new = raw.get("rope_scaling"), raw.get("rope_parameters")
    if isinstance(old, dict) and isinstance(new, dict):
        apart = sorted(key for key in old.keys() & new.keys() if old[key] != new[key])
        if apart:
            yield (
                f"rope_scaling and rope_parameters differ in {', '.join(apart)}: transformers 5 "
                "takes rope_scaling, other readers rope_parameters"
            )
    outer, inner = raw.get("rope_theta"), _scaling(raw).get("rope_theta")
    if None not in (outer, inner) and outer != inner:
        yield (
            f"rope_theta is {outer:g} in config.json and {inner:g} in its scaling: "
            "engines read one or the other"
        )


def _unread(raw: Mapping[str, Any], text: Any, trusted: bool) -> Iterator[str]:
    """Yield the keys of a scaling that change nothing in the library's rotary embedding.

    Each number is changed in turn, and the model's own rotary class is built with it.
    """
    scaling = _scaling(raw)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "dynamic":
        return  # it shows in inputs longer than the window alone
    own = text.rope_parameters
    slot = FULL if isinstance(own.get(FULL), dict) else ""
    before = _read(text, slot, {}, trusted)
    given = scaling.get("attention_factor") is not None
    for key, value in scaling.items():
        idle = key in UNSEEN or (given and key in OF_THE_FACTOR)
        idle |= key == WINDOW and kind not in ("llama3", "yarn")  # of longrope it chooses the list
        if idle or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        others = [type(value)(value * times) or times for times in TIMES]
        after = [_read(text, slot, {key: other}, trusted) for other in others]
        if before and all(one and one.fingerprint == before.fingerprint for one in after):
            yield (
                f"{key} {value:g} of its {kind} scaling is not read: transformers computes the same"
                " with other values"
            )


def _read(text: Any, slot: str, changes: dict[str, Any], trusted: bool) -> Frequencies | None:
    """Return what the model's rotary class has with changes of its scaling; None where it fails."""
    changed = deepcopy(text)
    own = changed.rope_parameters
    (own[slot] if slot else own).update(changes)
    try:
        return built(text, changed, trust_remote_code=trusted)
    except UserError:
        return None


def _by_length(scaling: Mapping[str, Any], model_type: str) -> Iterator[str]:
    """Yield the types whose frequencies follow the input: keys cached before are stale."""
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "dynamic":
        yield (
            "dynamic scaling: the base follows the longest input so far, keys cached before keep "
            "an older one, and results depend on what ran before; export the base of one length "
            "(dynamic_ntk, mode=frozen)"
        )
    scale = scaling.get("attention_factor")
    if kind == "longrope" and scale is not None and not scaling.get("long_mscale"):
        yield (
            f"attention_factor {scale:g} of longrope is dropped by vLLM and SGLang, which read "
            "short_mscale and long_mscale; write it there too"
        )
    lists = [scaling.get(name) for name in ("short_factor", "long_factor")]
    if kind in ("longrope", "su") and lists[0] != lists[1] and not model_type.startswith("phi3"):
        yield (
            "longrope has two lists of factors: transformers takes the one by the input, servers by"
            " the length that they allocate, and keys cached under the other are stale; write one "
            "list twice"
        )
