"""``ropewalk export``: what a serving engine reads of a scaling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import check_name
from ropewalk.harness.sweep.spec import OUT, Model, Opening, one_model, takes_settings

if TYPE_CHECKING:
    from ropewalk.harness.serve._export import Export

    Scaling = str | Callable[..., Any]
else:
    Scaling = str


@takes_settings
def export(
    model: Model = "reference",
    *,
    scaling: Scaling,
    length: str,
    to: str,
    out: Annotated[Path | None, OUT] = None,
    copy: bool = False,
    spec: Annotated[Opening, Parameter(name="*")] = Opening(),
) -> Export:
    """Write a scaling as a serving engine reads it, and print its numerical error there.

    Args:
        model: A folder, a hub name or a GGUF file; reference is the embedded demo model.
        scaling: One method: NAME, NAME:option=value,… or a path to your own file.
        length: The longest input in tokens: 512, 4k (4096) or 2x (twice the trained window).
        to: The engine: transformers, vllm, sglang, gguf (llama.cpp), mlx or hf-code.
        out: A new folder (or GGUF file) to write. [default: print the config and the command only]
        copy: Copy the weights into the folder instead of linking to them.
    """
    check_name("engine", to.replace("-", "_"))  # before anything that takes long to import
    if copy and out is None:
        raise UserError("--copy copies weights into the folder of --out; name one.")
    sweep = one_model(spec, model=model, scaling=[scaling], length=[str(length)])
    from ropewalk.harness.serve import _export

    result = _export.export(sweep, to)
    if out is None:
        return result
    return replace(result, place=_export.write(result, Path(out), copy=copy))
