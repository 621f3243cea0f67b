"""CPU time from the shell to the answer of commands that need no model."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

from benchmarks.setting import Row, Setting, row

DEVICE = "cpu"
RUNS = 10
BAR = 12.0


def measure(setting: Setting) -> list[Row]:
    """Ten starts each; bare Python beside them."""
    runs = 2 if setting.quick else RUNS
    bare = _times(["-c", "pass"], runs)
    found = [row("f", "python -c pass", bare, "ms", None)]
    for words in ("--help", "list", "run --help"):
        taken = _times(["-m", "harness", *words.split()], runs)
        found.append(row("f", f"ropewalk {words}", taken, "ms", None))
        if words == "--help":
            over = [one / statistics.median(bare) for one in taken]
            what = "the same over python -c pass"
            found.append(row("f", what, over, "x", BAR, above=False))
    return found


def _times(words: list[str], runs: int) -> list[float]:
    """Return milliseconds of CPU time of each run."""
    found = []
    for _ in range(runs):
        before = _spent()
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        found.append(_spent() - before)
    return found


def _spent() -> float:
    """Return the milliseconds of CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (used.ru_utime + used.ru_stime)
