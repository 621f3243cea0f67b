"""``ropewalk export``: what a serving engine reads of a scaling."""

from __future__ import annotations

import shlex
from typing import Any

from ropewalk.harness.cli.console import TERMINAL, Done, note_demo, screen
from ropewalk.harness.cli.output import command
from ropewalk.harness.cli.settings import OPENING, MaybeModel, Out, with_settings

PORTS = {"gguf": 8080, "vllm": 8000, "sglang": 30000}  # where each serves unless told otherwise


@command
@with_settings(*OPENING)
def export(
    model: MaybeModel = None,
    *,
    scaling: str,
    length: str,
    to: str,
    out: Out = None,
    copy: bool = False,
    **settings: Any,
) -> Done:
    """Write a scaling as a serving engine reads it, and print its numerical error there.

    Args:
        model: A folder, a hub name or a GGUF file. [default: reference, the embedded demo model]
        scaling: One method: NAME, NAME:option=value,… or a path to your own file.
        length: The longest input in tokens: 512, 4k (4096) or 2x (twice the trained window).
        to: The engine: transformers, vllm, sglang, gguf (llama.cpp), mlx or hf-code.
        out: A new folder (or GGUF file) to write. [default: print the config and the command only]
        copy: Copy the weights into the folder instead of linking to them.
    """
    from ropewalk.harness.plugins import check_name

    check_name("engine", to.replace("-", "_"))  # before anything that takes long to import
    from ropewalk.harness.api.model import written_export
    from ropewalk.harness.api.settings import read_spec

    if model is None:
        note_demo()
    spec = read_spec({"model": model, "scaling": [scaling], "length": [length], **settings})
    result = written_export(spec, to, out, copy=copy, observer=TERMINAL)
    screen.print(result.text(), soft_wrap=True)
    if (port := PORTS.get(to)) is not None:
        method = ["--scaling", scaling, "--length", str(result.target.length)]
        words = [*spec.opened, *method, "--server", f"http://127.0.0.1:{port}"]
        line = shlex.join(["ropewalk", "doctor", *words])
        screen.print(f"Compare its losses while it runs: {line}", soft_wrap=True)
    return Done(result)
