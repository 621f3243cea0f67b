"""``ropewalk doctor``: does a model, its config and its server do what is meant."""

from __future__ import annotations

from typing import Any

from ropewalk.harness.cli.console import COMPLETE, TERMINAL, WITH_FAILURES, Done, print_finding
from ropewalk.harness.cli.output import command
from ropewalk.harness.cli.settings import OPENING, Model, with_settings


@command
@with_settings(
    "docs",
    "dtype",
    "device",
    *OPENING,
    docs="Whose first document is read. [default: the embedded documents]",
)
def doctor(
    model: Model,
    *,
    scaling: str = "native",
    length: str = "1x",
    server: str | None = None,
    quick: bool = False,
    **settings: Any,
) -> Done:
    """Find faults of one model: its config, patch, cache and server; exit status 1 if it has any.

    Args:
        model: A folder, a hub name or a GGUF file.
        scaling: The method that should be in use, NAME:option=value,…; native is the shipped one.
        length: The length that the method is for: 512, 4k (4096) or 2x (twice the trained window).
        server: http://HOST:PORT of a running server (vLLM, SGLang, llama.cpp); losses are compared.
        quick: Read only 64 tokens, and wait at most a minute for a reply.
    """
    from ropewalk.harness.api.model import findings

    found = []
    settings |= {"scaling": [scaling], "length": [length]}
    with TERMINAL.status("Examining"):
        for finding in findings(model, server=server, quick=quick, **settings):
            print_finding(finding, 6)
            found.append(finding)
    failed = any(finding.verdict == "failed" for finding in found)
    return Done(found, WITH_FAILURES if failed else COMPLETE)
