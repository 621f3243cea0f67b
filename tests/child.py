"""A process of its own, for a test that kills or limits it: a quick fork of this one.

What is imported, and patched for the test, is so in the child too.
"""

import multiprocessing
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FORKS = multiprocessing.get_context("fork")
SECONDS, MEMORY = 240, 4 * 2**30  # of a bounded process: on its processor, and bytes of its own


@dataclass(frozen=True)
class Ended:
    """How a process ended: its status, less than 0 for a signal, and what it wrote."""

    status: int
    out: str
    err: str


def in_child(function: Callable[..., object], *given: object) -> Ended:
    """Call a function in another process and wait for its end."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads here only wait
        files = [Path(folder, name) for name in ("out", "err")]
        process = FORKS.Process(target=_call, args=(function, given, *files))
        process.start()
        process.join()
        status, (out, err) = process.exitcode, (file.read_text() for file in files)
        process.close()
    assert status is not None
    return Ended(status, out, err)


def mapped() -> int:
    """Return the bytes of address space that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _call(function: Callable[..., object], given: tuple[object, ...], *files: Path) -> None:
    for number, file in enumerate(files, start=1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    function(*given)


def bounded(function: Callable[..., object], *given: object) -> None:
    """Call a function in another process with a limit on its time and memory; fail where it fails.

    The limits are ten times what these calls take, so how busy the machine is does not matter.
    """
    ended = in_child(_limited, function, *given)
    assert ended.status == 0, f"status {ended.status}\n{ended.out[-6000:]}\n{ended.err[-6000:]}"


def _limited(function: Callable[..., object], *given: object) -> None:
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + SECONDS, int(used) + SECONDS))
    most = mapped() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    function(*given)
