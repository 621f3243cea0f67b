"""Starts the command line, as the console command and as ``python -m harness``."""

from __future__ import annotations

import gc


def start() -> None:
    """Import without looking for garbage, of which imports make none, and run."""
    gc.disable()
    from harness.cli import main

    gc.enable()
    main()


if __name__ == "__main__":
    start()
