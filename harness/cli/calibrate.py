"""``ropewalk calibrate``: measure a model's heads for the methods that treat them differently."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ropewalk.harness.cli.console import TERMINAL, Done, screen
from ropewalk.harness.cli.output import command
from ropewalk.harness.cli.settings import OPENING, Model, OutFile, Whole, with_settings


@command
@with_settings(
    "docs",
    "dtype",
    "device",
    *OPENING,
    docs="What is read; other documents than those that are measured afterwards. [default: "
    "embedded, 23 texts from Python's standard library]",
)
def calibrate(
    model: Model,
    *,
    length: str = "1x",
    documents: Whole = 10,
    out: OutFile = Path("heads.json"),
    **settings: Any,
) -> Done:
    """Measure a model's heads on documents, for ms_poe:heads=FILE and dpe:heads=FILE.

    Args:
        model: A folder, a hub name or a GGUF file.
        length: How many tokens of each document are read, at most the trained window.
        documents: How many documents are read.
        out: The file that is written.
    """
    from ropewalk.harness.api.calibrate import calibrate as measure

    settings |= {"length": [length]}
    result = measure(model, documents=documents, out=out, observer=TERMINAL, **settings)
    layers, heads = result.tables.outlier_shares.shape
    names = ", ".join(entry["name"] for entry in result.documents)
    screen.print(
        f"{result.file} has {layers} layers of {heads} heads, measured on {names}.", soft_wrap=True
    )
    methods = f"ms_poe:heads={result.file} dpe:heads={result.file}"
    screen.print(
        "Measure with it on other documents: ropewalk run --model "
        f"{shlex.quote(model)} --docs OTHERS --scaling none {methods} --length 1x 2x",
        soft_wrap=True,
    )
    return Done(result)
