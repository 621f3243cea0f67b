"""Write a method as a serving engine reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.cli.one_model import read_spec
from harness.serve._choose import Export
from harness.serve._export import export as chosen
from harness.serve._write import write


def export(
    model: str | Path,
    *,
    scaling: str | Callable[..., Any],
    length: int | str,
    to: str,
    out: str | Path | None = None,
    copy: bool = False,
    **settings: Any,
) -> Export:
    """Return what an engine reads for a method at a length; write it where ``out`` is given.

    ``to`` is transformers, vllm, sglang, gguf, mlx or hf-code; ``settings`` are revision, offline
    and trust_remote_code. ``print(found.text())`` is what the command prints, ``found.changed`` the
    keys, ``found.distance`` how far what the engine computes is from what was measured. Raises
    UserError for what the engine cannot express.
    """
    asked = {"model": str(model), "scaling": [scaling], "length": [str(length)], **settings}
    spec = read_spec(asked)
    found = chosen(spec, to)
    if out is not None:
        write(found, Path(out), spec.revision, copy=copy)
    return found
