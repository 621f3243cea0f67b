"""Starts the command line, as the console command and as ``python -m ropewalk.harness``."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path


def start() -> None:
    """Import with garbage collection off, because imports make no garbage, and run."""
    _open_streams()
    try:
        gc.disable()
        from ropewalk.harness.cli.app import main

        gc.freeze()
        gc.enable()
        main()
    except KeyboardInterrupt:  # before main can say what an interrupt keeps, or while it does
        sys.exit(130)


def _open_streams() -> None:
    """Open /dev/null where stdin, stdout or stderr is closed, before a file takes its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: PTH123, SIM115


if __name__ == "__main__":
    # Python lets what -m starts import from the current directory; the console command does not.
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(__file__).resolve().parent.parent)
    start()
