"""What vLLM, SGLang and mlx-lm have in common: each reads a config.json, with its own exceptions.

The file of an engine has its row: the families and rope types that it reads, and its spellings.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropewalk.harness.patching.config import ORIGINAL
from ropewalk.harness.serve._parameters import (
    SECTIONS,
    RopeParameters,
    Target,
    changes,
    check_one_embedding,
)
from ropewalk.scaling import native
from ropewalk.scaling.types import Frequencies, Rope

NAMED = ("default", "linear", "llama3", "yarn")  # read by name, by each of the three
INTERLEAVED = (  # pairs are neighbouring channels, which the longrope classes of servers reject
    "cohere", "cohere2", "cohere2_moe", "deepseek_v2", "ernie4_5", "ernie4_5_moe", "glm", "glm4",
    "glm4v", "glm_ocr", "helium", "llama4", "paddleocr_vl",
)  # fmt: skip


@dataclass(frozen=True)
class Server:
    """A row of the table.

    Attributes:
        name: the engine in a sentence.
        line: the command, with ``{place}`` and ``{length}``.
        spell: returns a scaling with the engine's own keys; raises ValueError for what these cannot
            express.
        heard: returns transformers' words for the keys that a class of the engine reads.
        only: the one rope type that a class reads, for model types whose class does not read all.
        families: the model types whose class reads a scaling; empty for all.
        beside: keys that are written beside ``rope_parameters`` too.
        flag: the option that overrides keys of a config; none if the engine reads a folder alone.
    """

    name: str
    line: str
    spell: Callable[[RopeParameters, Target], RopeParameters]
    heard: Callable[[RopeParameters, Target], RopeParameters] = lambda parameters, _: parameters
    only: Mapping[str, str] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    flag: str = ""

    def express(self, parameters: RopeParameters, target: Target) -> dict[str, Any]:
        """Return the changes of config.json; raise ValueError for what the engine cannot read."""
        check_one_embedding(target, self.name)
        kind, model_type = parameters["rope_type"], target.config.model_type
        model_type = target.text.model_type if target.text.model_type in self.only else model_type
        if self.families and model_type not in self.families:
            known = ", ".join(self.families)
            raise ValueError(
                f"{self.name} is not known to read a scaling for {model_type}, but for {known}"
            )
        read = self.only.get(model_type, kind)
        if kind != read:
            what = "no scaling, a base alone" if read == "default" else f"{read} alone"
            raise ValueError(f"its class for {model_type} reads {what}")
        if kind == "longrope" and model_type in INTERLEAVED:
            raise ValueError(
                f"its longrope does not support {model_type}, whose pairs are neighbouring channels"
            )
        changed = changes(self.spell(parameters, target), target)
        new = changed["rope_parameters"]
        if kind not in ("default", "yarn"):  # the only ones by which images are rotated
            for name in SECTIONS:  # without them the class is that of a model of text
                new.pop(name, None)
        return changed | {name: new[name] for name in self.beside if name in new}

    def computed(self, changed: dict[str, Any], target: Target) -> Frequencies:
        """Return the frequencies in transformers' order of operations, as vLLM and SGLang do.

        For longrope, they read the attention factor from a key of their own.
        """
        parameters = self.heard(dict(changed["rope_parameters"]), target)
        if parameters["rope_type"] == "longrope":
            parameters["attention_factor"] = parameters.get("long_mscale")
        base, rope = float(parameters["rope_theta"]), target.rope
        trained = int(parameters.get(ORIGINAL) or rope.trained_length)
        return native.frequencies(Rope(rope.rotary_dim, base, trained, parameters), trained + 1)

    def command(self, changed: dict[str, Any], place: str, target: Target) -> str:
        """Return the command that serves a model, overriding its config where it lies."""
        words = []
        if place == target.place:
            words = ["--revision", target.revision] if target.revision else []
            inside = target.text is not target.config  # of an image-text model
            words += [self.flag, json.dumps({"text_config": changed} if inside else changed)]
        if SECTIONS[0] in set(target.text.rope_parameters) - set(changed["rope_parameters"]):
            words.append("--language-model-only")  # images would be rotated as text
        line = self.line.format(place=shlex.quote(place), length=target.length)
        return " ".join([line, *map(shlex.quote, words)]) + " --trust-remote-code" * target.trusted
