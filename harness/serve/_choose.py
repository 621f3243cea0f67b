"""Choose the plainest form of a rotation that an engine computes as it was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from harness.errors import UserError
from harness.models.gguf import is_gguf
from harness.plugins import Plugin
from harness.serve._forms import carrier, named
from harness.serve._types import Asked, Distance, Words
from scaling.types import StatefulRope, needs_code

FORMS = {
    "default": "the plain embedding at another base",
    "longrope": "longrope, the one form of any frequencies (both lists are the same)",
    "bands": "a modelling file",
}


@dataclass(frozen=True)
class Export:
    """What an engine reads: ``form`` is its rope type, ``changed`` the keys, ``distance`` how far.

    The distance is None in a modelling file: what it needs is stored as it was measured.
    """

    engine: str
    module: Any
    asked: Asked
    form: str
    changed: dict[str, Any]
    distance: Distance | None

    def text(self, place: str | None = None) -> str:
        """Return the config, the distance and the command, of a ``place`` that was written."""
        asked, form = self.asked, FORMS.get(self.form, self.form)
        if self.form == "default" and torch.equal(
            asked.frequencies.inv_freq, asked.rope.inv_freq()
        ):
            form = "the plain embedding as it is"
        about = f"{asked.told} for {self.engine}: {form}"
        far = "The numbers are stored as they were measured"
        if self.distance is not None:
            far = f"What it computes: {self.distance}"
        command = self.module.command(self.changed, place or asked.place, asked)
        if place is None and self._needs_folder:
            command = self.module.command(self.changed, "NEW", asked)
            command += ", where --out NEW is written"
        return "\n".join([about, shown(self.changed), f"{far}.", command])

    @property
    def _needs_folder(self) -> bool:
        """Whether no key beside a command changes the config that is read.

        It is that of a GGUF file, or inside of another: there keys would be dropped without a word.
        """
        asked = self.asked
        inside = asked.config.get_text_config() is not asked.config
        return self.engine != "gguf" and (inside or is_gguf(asked.place))


def choose(asked: Asked, engine: Plugin, method: Plugin) -> Export:
    """Return the first form that only rounding separates from what was measured.

    Raises UserError, with the engine's reasons and the nearest that it can, where there is none.
    """
    module, name, said = engine.module, engine.label.replace("_", "-"), dict[str, list[str]]()
    nearest: tuple[float, str] | None = None
    try:
        for words in _forms(asked, method, module.NAMED):
            try:
                changed = module.express(words, asked)
            except ValueError as error:
                said.setdefault(str(error), []).append(words["rope_type"])
                continue
            found = module.computed(changed, asked)
            distance = None if found is None else asked.distance(found)
            if distance is None or distance.close:
                return Export(name, module, asked, words["rope_type"], changed, distance)
            apart = (distance.factor, f"the nearest is {words['rope_type']}, where {distance}")
            nearest = min(apart, nearest or apart)
    except ValueError as error:
        said = {str(error): []}
    reasons = [f"{', '.join(forms)}: {why}" for why, forms in said.items()]
    told = [*(reasons if len(said) > 1 else said), *([nearest[1]] if nearest else [])]
    raise UserError(f"{name} cannot serve {asked.told} ({'; '.join(told)}).")


def _forms(asked: Asked, method: Plugin, known: tuple[str, ...]) -> Iterator[Words]:
    """Yield the forms to try, the plainest first; raise ValueError where there can be none."""
    rotation = asked.rotation
    if needs_code(rotation) and "bands" in known:
        yield {"rope_type": "bands"}
    elif isinstance(rotation, StatefulRope):
        if "dynamic" not in known:
            raise ValueError(
                "a base that follows the length step by step is in transformers alone. The nearest:"
                " mode=frozen, the base of one length"
            )
        yield {**rotation.rope_parameters, "rope_theta": asked.rope.base}
    else:
        name = method.module.__name__.rpartition(".")[2]
        own = method.arguments if method.digest is None else {}
        forms = named(asked, name, own)
        yield from (words for words in forms if words["rope_type"] in known)
        yield carrier(asked)


def shown(value: Any, depth: int = 0) -> str:
    """Return JSON with a key a line and every list in one line."""
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    inner = "  " * (depth + 1)
    lines = (f'{inner}"{key}": {shown(held, depth + 1)}' for key, held in value.items())
    return "{\n" + ",\n".join(lines) + "\n" + "  " * depth + "}"
