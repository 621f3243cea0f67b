"""Small finished runs, and runs whose record was changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropewalk.harness.reports._write import FIGURES as FIGURES
from ropewalk.harness.runs.store import RUN
from tests.command_line import status


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Let a run end without figures and last screen: both take longer than it.

    Nor is the same config read for its layers again.
    """
    from ropewalk.harness.models.structure import layers_of

    known: dict[str, Any] = {}

    def once(config: Any, **asked: bool) -> Any:
        key = f"{asked} {config.to_json_string()}"
        if key not in known:
            known[key] = layers_of(config, **asked)
        return known[key]

    patch.setattr("ropewalk.harness.sweep.notes.layers_of", once)
    patch.setattr("ropewalk.harness.commands.report.answer", lambda _: "Scores.")
    patch.setattr("ropewalk.harness.reports._write.FIGURES", ())


def sweep(model: Path, docs: Path, out: Path, *words: str) -> Path:
    """Run a small sweep; later words win over these."""
    settings = {"--length": "2x", "--scaling": "pi", "--task": "perplexity:tail=16"}
    settings |= dict(zip(words[::2], words[1::2], strict=True))
    flags = [text for pair in settings.items() for text in pair]
    assert status("run", "--model", model, "--docs", docs, "--out", out, *flags) == 0
    return out


def changed(run: Path, out: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Copy a run and change its record."""
    shutil.copytree(run, out)
    record = json.loads((out / RUN).read_text())
    change(record)
    (out / RUN).write_text(json.dumps(record))
    return out
