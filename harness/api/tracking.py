"""Let a process beside the measurement send a run to a tracker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from harness.api.observer import Observer
from harness.errors import UserError
from harness.names import printable
from harness.plugins import ROOT, load
from harness.share.trackers import FINISHED, STOPPED, send_again, written_at

# Seconds for what is left when measuring has ended.
PATIENCE = {FINISHED: 300.0, STOPPED: 10.0}


def check_tracker(given: str) -> None:
    """Raise UserError for an unknown tracker, and for one whose package is not installed."""
    package = getattr(load("tracker", given).module, "PACKAGE", None)
    if package and find_spec(package) is None:
        raise UserError(
            f"--track {given} needs the package {package}: pip install 'ropewalk[{package}]'."
        )


@contextmanager
def tracked(
    given: str | None, folder: Path, tasks: Iterable[str], observer: Observer
) -> Iterator[subprocess.Popen[str] | None]:
    """Send a run to a tracker, where one is given, while it is measured inside."""
    if given is None:
        yield None
        return
    words = [sys.executable, "-P", "-m", "harness.share.trackers._follow", given, str(folder)]
    # An empty place would be the current directory.
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    child = subprocess.Popen(
        [*words, str(written_at(folder)), *tasks],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the process that measures
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, path)])},
    )
    notes = Thread(target=_note, args=(child, observer), daemon=True)
    notes.start()
    word = STOPPED
    try:
        yield child
        word = FINISHED
    finally:
        _end(child, word, given, folder, observer)
        notes.join(1)


def _note(child: subprocess.Popen[str], observer: Observer) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            observer.note(printable(line.rstrip("\n")))


def _end(
    child: subprocess.Popen[str], word: str, given: str, folder: Path, observer: Observer
) -> None:
    """Let the process send what is left, and end it where it takes too long."""
    assert child.stdin is not None
    with suppress(OSError):
        child.stdin.write(f"{word}\n")
        child.stdin.close()
    try:
        if written_at(folder):  # else the run was refused
            with observer.status(f"Sending to {given}"):
                child.wait(PATIENCE[word])
    except subprocess.TimeoutExpired:
        observer.note(f"{given} took too long; {send_again(folder, given)}.")
    finally:
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
