"""The line to type next that serves a method: tried before it is printed."""

from __future__ import annotations

import shlex

from harness.errors import UserError
from harness.serve._export import export
from harness.sweep.spec import Spec
from scaling.types import Rotation, needs_code

MERGED = "MERGED"  # the folder of a model with its adapter's weights


def serving(
    spec: Spec, scaling: str, rotation: Rotation, length: int, engine: str | None = None
) -> tuple[str, str]:
    """Return the command that writes a method for an engine, and what to say of it.

    ``rotation`` is the method's at the length; without an engine it is the plainest that reads it.
    A modelling file (hf-code) is for methods that need one alone. Where nothing serves it the
    command is empty, and the reason is said. An export has no adapter: with one the command is of
    the merged model.
    """
    plainest = "hf-code" if needs_code(rotation) else "transformers"
    to = plainest if engine in (None, "hf-code") else engine
    asked = {"scaling": (scaling,), "length": (str(length),)}
    try:
        export(spec.model_copy(update=asked), to)
    except UserError as error:
        return "", f"no line serves it: {error}"
    merged = {"model": MERGED, "revision": None} if spec.adapter else {}
    words = ["ropewalk", "export", *spec.model_copy(update=merged).opened, "--scaling", scaling]
    line = shlex.join([*words, "--length", str(length), "--to", to])
    if spec.adapter is None:
        return line, line
    return line, (
        f"merge the adapter {spec.adapter} into the model, which is served without it (PEFT: "
        f"merge_and_unload, then save_pretrained into {MERGED}, the tokenizer too): {line}"
    )
