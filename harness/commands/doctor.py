"""``ropewalk doctor``: does a model, its config and its server do what is meant."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ropewalk.harness.commands.check import Findings
from ropewalk.harness.sweep.spec import Model, Reading, parse, settings_of, takes_settings


@takes_settings
def doctor(
    model: Model,
    *,
    scaling: str = "native",
    length: str = "1x",
    server: str | None = None,
    quick: bool = False,
    spec: Annotated[Reading, Parameter(name="*")] = Reading(),
) -> Findings:
    """Find faults of one model: its config, patch, cache and server; exit status 1 if it has any.

    Args:
        model: A folder, a hub name or a GGUF file.
        scaling: The method that should be in use, NAME:option=value,…; native is the shipped one.
        length: The length that the method is for: 512, 4k (4096) or 2x (twice the trained window).
        server: http://HOST:PORT of a running server (vLLM, SGLang, llama.cpp); losses are compared.
        quick: Read only 64 tokens.
    """
    settings = {**settings_of(spec), "model": model, "scaling": [scaling], "length": [str(length)]}
    sweep = parse(None, settings)
    from ropewalk.harness.serve._doctor import examine
    from ropewalk.harness.sweep.server import connect

    running = connect(server) if server else None  # before weights are read
    return Findings(examine(sweep, running, quick=quick))
