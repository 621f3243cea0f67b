"""The keys of config.json that carry a scaling, for engines that read Hugging Face's config."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from harness.errors import reason
from harness.patching.config import FULL
from harness.serve._types import Asked, Words
from scaling import native
from scaling.types import Frequencies, Rope

KEPT = ("partial_rotary_factor",)  # of the embedding itself
INTERLEAVED = (  # their neighbours are pairs: the longrope classes of both servers refuse them
    "cohere", "cohere2", "glm", "glm4", "helium", "ernie4_5", "llama4", "deepseek_v2",
)  # fmt: skip


def changes(words: Words, asked: Asked) -> dict[str, Any]:
    """Return what config.json says otherwise, in the words of transformers 5.

    Raises ValueError for a scaling that the model's config class refuses: no engine could load it.
    """
    given = asked.config.get_text_config().rope_parameters
    shipped = given[FULL] if asked.slotted else given
    new = {**words, **{name: shipped[name] for name in KEPT if name in shipped}}
    changed: dict[str, Any] = {"max_position_embeddings": asked.length}
    if getattr(asked.config.get_text_config(), "original_max_position_embeddings", None):
        changed["original_max_position_embeddings"] = asked.rope.trained_length  # Phi 3 reads it
    changed["rope_parameters"] = {**given, FULL: new} if asked.slotted else new
    try:
        changed_config(changed, asked)
    except (StrictDataclassError, KeyError) as error:
        told = reason(error.__cause__ or error).rstrip(".")
        raise ValueError(
            f"transformers' {type(asked.config).__name__} refuses it: {told}"
        ) from error
    return changed


def changed_config(changed: dict[str, Any], asked: Asked) -> Any:
    """Return the library's config of the text model with these changes."""
    text = asked.config.get_text_config()
    return type(text).from_dict({**text.to_dict(), "rope_scaling": None, **changed})


def words_of(changed: dict[str, Any]) -> Words:
    """Return the scaling in changes of a flat config."""
    words: Words = changed["rope_parameters"]
    return words


def check_flat(asked: Asked, engine: str) -> None:
    """Raise ValueError for a model that has a rotary embedding per layer type."""
    if asked.slotted:
        raise ValueError(
            f"{asked.config.model_type} has a rotary embedding per layer type, and how {engine} "
            "reads a scaling of one of them is not checked. The nearest: --to transformers"
        )


def check_read(words: Words, kind: str, only: Mapping[str, str]) -> None:
    """Raise ValueError where a server's class for a model type does not read such a scaling.

    ``only`` has the one rope type that is read, of the model types whose class does not read all.
    """
    given = words["rope_type"]
    read = only.get(kind, given)
    if given != read:
        what = "no scaling, a base alone" if read == "default" else f"{read} alone"
        raise ValueError(f"its class for {kind} reads {what}")
    if given == "longrope" and kind in INTERLEAVED:
        raise ValueError(f"its longrope does not take {kind}, whose channel pairs are neighbours")


def torch_frequencies(words: Words, asked: Asked) -> Frequencies:
    """Return what words mean in the order of operations that transformers and its heirs have."""
    rope, window = asked.rope, words.get("original_max_position_embeddings")
    base, trained = float(words["rope_theta"]), int(window or rope.trained_length)
    return native.frequencies(Rope(rope.rotary_dim, base, trained, words), trained + 1)


def one_line(words: dict[str, Any]) -> str:
    """Return JSON in one line."""
    return json.dumps(words, separators=(", ", ": "))


def overriding(flag: str, changed: dict[str, Any], asked: Asked) -> str:
    """Return the words of a command that change the config of a model where it is."""
    revision = ["--revision", asked.revision] if asked.revision else []
    return shlex.join([*revision, flag, one_line(changed)])
