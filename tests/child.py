"""A process of its own, for a test that kills or limits it; imports are made once for all."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.runs import shorten

FORKS = multiprocessing.get_context("forkserver")
# Imported before the first fork, so that no child needs the seconds that they take.
FORKS.set_forkserver_preload([
    "harness.cli.app", "harness.sweep.measure", "harness.runs.frame", "harness.runs.write",
    "transformers.models.llama.modeling_llama",
])  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a process ended: its status, less than 0 for a signal, and what it wrote."""

    status: int
    out: str
    err: str


def in_child(function: Callable[..., object], *given: object) -> Ended:
    """Call a function of a module in another process and wait for its end."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("out", "err")]
        process = FORKS.Process(target=_call, args=(function, given, *map(str, files)))
        process.start()
        process.join()
        status, (out, err) = process.exitcode, (file.read_text() for file in files)
        process.close()
    assert status is not None
    return Ended(status, out, err)


def _call(function: Callable[..., object], given: tuple[object, ...], *files: str) -> None:
    for number, file in enumerate(files, start=1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        function(*given)
