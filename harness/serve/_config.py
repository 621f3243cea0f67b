"""A scaling in config.json, which transformers, vLLM, SGLang and mlx-lm read, each in its own way.

The file of an engine has what is its own: the rope types that it reads, and how it spells them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from ropewalk.harness.errors import reason
from ropewalk.harness.patching.config import DUAL_CHUNK, FULL, ORIGINAL, TUNING
from ropewalk.harness.serve._parameters import RopeParameters, Target
from ropewalk.scaling import native
from ropewalk.scaling.types import Frequencies, Rope

BY_NAME = ("default", "linear", "llama3", "yarn")  # what vLLM, SGLang and mlx-lm read
LIMITS = (  # other names of the window: vLLM takes the smallest of all, SGLang the first it knows
    "max_seq_len", "max_seq_length", "max_sequence_length", "model_max_length", "n_positions",
    "seq_len", "seq_length",
)  # fmt: skip
LEGACY = ("rope_scaling", "rope_theta")  # what transformers 4, mlx-lm and others read
AT_THE_TOP = ("rope_theta", "partial_rotary_factor")  # where older readers read them
SECTIONS = ("mrope_section", "mrope_interleaved")  # the channels of an image's rows and columns
# Families whose pairs are neighbouring channels, which the longrope classes of servers reject.
INTERLEAVED = dict.fromkeys(
    (
        "cohere", "cohere2", "cohere2_moe", "deepseek_v2", "ernie4_5", "ernie4_5_moe", "glm",
        "glm4", "glm4v", "glm_ocr", "helium", "llama4", "llama4_text", "paddleocr_vl",
    ),
    BY_NAME,
)  # fmt: skip


def changes(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the changed keys of config.json, as transformers 5 writes them.

    Raises ValueError for a scaling that the model's config class rejects: no engine could load it.
    """
    shipped, new = target.text.rope_parameters, dict(parameters)
    own = shipped.get(FULL, shipped)  # whose other keys are of the embedding itself
    new |= {name: own[name] for name in ("partial_rotary_factor", *SECTIONS) if name in own}
    changed: dict[str, Any] = {"max_position_embeddings": target.length}
    given = target.text.to_dict()
    changed |= {k: target.length for k in LIMITS if (given.get(k) or target.length) < target.length}
    if getattr(target.text, ORIGINAL, None):  # Phi 3 reads it
        changed[ORIGINAL] = target.rope.trained_length
    changed["rope_parameters"] = {**shipped, FULL: new} if target.per_layer_type else new
    if DUAL_CHUNK in target.rope.shipped:  # vLLM and SGLang would build its rotary class
        changed[DUAL_CHUNK] = None
    if native.TUNED[1] in target.rope.shipped and target.rotation.last.temperature is None:
        changed[TUNING] = False
    try:
        changed_config(changed, target)
    except (StrictDataclassError, KeyError) as error:
        why = reason(error.__cause__ or error).rstrip(".")
        raise ValueError(
            f"transformers' {type(target.config).__name__} rejects it: {why}"
        ) from error
    return changed


def changed_config(changed: dict[str, Any], target: Target) -> Any:
    """Return the library's config of the text model with these changes."""
    text = target.text
    return type(text).from_dict({**text.to_dict(), "rope_scaling": None, **changed})


def changed_file(raw: dict[str, Any], changed: dict[str, Any], target: Target) -> dict[str, Any]:
    """Return config.json with the changes, and with the keys of older readers beside the new ones.

    transformers 5 reads rope_parameters, others rope_theta and rope_scaling: both say the same.
    """
    text = dict(raw.get("text_config") or {}) if target.nested else dict(raw)
    for name in LEGACY:
        text.pop(name, None)
    parameters = changed["rope_parameters"]
    if "rope_theta" in parameters:
        plain = parameters["rope_type"] == "default"
        text |= {name: parameters[name] for name in AT_THE_TOP if name in parameters}
        text["rope_scaling"] = None if plain else parameters
    text |= {name: value for name, value in changed.items() if name not in LEGACY}
    for name in [name for name, value in changed.items() if value is None]:
        del text[name]
    return {**raw, "text_config": text} if target.nested else text


def served_changes(
    parameters: RopeParameters, target: Target, types: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Return the changed keys for a server.

    ``types`` are the rope types that its class for a model type reads; other classes read all.
    Raises ValueError for a type that is not read.
    """
    kind = parameters["rope_type"]
    for model_type in (target.text.model_type, target.config.model_type):
        if kind not in types.get(model_type, (kind,)):
            read = f"only rope_type {', '.join(types[model_type])}"
            read = "no scaling, a base alone" if types[model_type] == ("default",) else read
            raise ValueError(f"its class for {model_type} reads {read}")
    changed = changes(parameters, target)
    if kind not in ("default", "yarn"):  # the only ones by which images are rotated
        for name in SECTIONS:  # without them the class is that of a model of text
            changed["rope_parameters"].pop(name, None)
    return changed


def served_frequencies(parameters: RopeParameters, target: Target) -> Frequencies:
    """Return the frequencies in transformers' order of operations, as vLLM and SGLang do.

    For longrope, they read the attention factor from a key of their own.
    """
    if parameters["rope_type"] == "longrope":
        parameters["attention_factor"] = parameters.get("long_mscale")
    base, rope = float(parameters["rope_theta"]), target.rope
    trained = int(parameters.get(ORIGINAL) or rope.trained_length)
    return native.frequencies(Rope(rope.rotary_dim, base, trained, parameters), trained + 1)


def options(flag: str, changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the options with which a server reads a model.

    ``flag`` takes the changed keys, which a folder that was written has already.
    """
    words = []
    if place == target.place:
        words = ["--revision", target.revision] if target.revision else []
        words += [flag, json.dumps({"text_config": changed} if target.nested else changed)]
    if SECTIONS[0] in set(target.text.rope_parameters) - set(changed["rope_parameters"]):
        words.append("--language-model-only")  # images would be rotated as text
    return shlex.join(words + ["--trust-remote-code"] * target.trusted)
