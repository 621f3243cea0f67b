"""``ropewalk export``: what a serving engine reads of a scaling."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.cli.console import COMPLETE, TERMINAL, Switch, screen

PORTS = {"gguf": 8080, "vllm": 8000, "sglang": 30000}  # where each serves unless told otherwise


def export(
    model: str,
    *,
    scaling: str,
    length: str,
    to: str,
    out: Path | None = None,
    copy: Annotated[bool, Parameter(negative="")] = False,
    revision: str | None = None,
    offline: Switch = None,
    trust_remote_code: Switch = None,
) -> int:
    """Write a scaling as a serving engine reads it, and say how far what it computes is from it.

    Args:
        model: A folder, a hub name or a GGUF file.
        scaling: One method: NAME, NAME:option=value,… or a path to your own file.
        length: The longest input in tokens: 512, 4k (4096) or 2x (twice the trained window).
        to: The engine: transformers, vllm, sglang, gguf (llama.cpp), mlx or hf-code.
        out: A new folder (or GGUF file) to write; default: print the config and the command only.
        copy: Copy the weights into the folder; default: link them.
        revision: Branch, tag or commit on the hub.
        offline: Send no request to the hub; use what its cache has.
        trust_remote_code: Let code from the model's repository run.
    """
    from harness.api.model import written_export
    from harness.api.settings import read_spec

    spec = read_spec(
        {
            "model": model,
            "scaling": [scaling],
            "length": [length],
            "revision": revision,
            "offline": offline,
            "trust_remote_code": trust_remote_code,
        }
    )
    result, place = written_export(spec, to, out, copy=copy, observer=TERMINAL)
    screen.print(result.text(str(place) if place else None), soft_wrap=True)
    if (port := PORTS.get(to)) is not None:
        method = ["--scaling", scaling, "--length", str(result.target.length)]
        words = [*spec.opened, *method, "--server", f"http://127.0.0.1:{port}"]
        line = shlex.join(["ropewalk", "doctor", *words])
        screen.print(f"Compare its losses while it runs: {line}", soft_wrap=True)
    return COMPLETE
