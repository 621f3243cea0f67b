"""The process that follows a run folder.

``python -m harness.share.trackers TRACKER RUN WRITTEN TASK…``

It is apart from the one that measures: a tracker that fails, waits or writes to the terminal
disturbs no measurement. It reads a word from stdin when measuring has ended, and what it says to
the user, a line each, goes to stdout.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from harness.plugins import load
from harness.share.trackers._follow import Following, follow


def main() -> int:
    """Follow a folder; return 1 where something was not sent."""
    given, folder, written, *tasks = sys.argv[1:]
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as out:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        say = partial(print, file=out, flush=True)
        following = Following(Path(folder), load("tracker", given), tasks, say)
        return 0 if follow(following, int(written), sys.stdin) else 1


if __name__ == "__main__":
    sys.exit(main())
