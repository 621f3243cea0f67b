"""Find faults of a model, its config and its server, from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.cli.one_model import read_spec
from harness.methods.findings import Finding
from harness.serve._doctor_examine import examine
from harness.serve._doctor_server import Server


def doctor(
    model: str | Path, *, server: str | None = None, quick: bool = False, **settings: Any
) -> list[Finding]:
    """Return what ``ropewalk doctor`` finds: each ``about``, ``verdict`` and ``text``.

    ``settings`` are those of the command line: ``scaling``, ``length``, ``docs``, … Raises
    UserError for what cannot be examined.
    """
    spec = read_spec({"model": str(model), **settings}, {"scaling": "native", "length": "1x"})
    asked = Server(server, quick=quick) if server else None
    return list(examine(spec, asked, quick=quick))
