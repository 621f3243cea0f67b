"""CPU time from the shell to the answer of commands that need no model."""

from __future__ import annotations

import resource
import subprocess
import sys

from benchmarks.setting import Row, Setting, row

RUNS = 10


def measure(setting: Setting) -> list[Row]:
    """Ten starts each; bare Python beside them."""
    if setting.device != "cpu":
        return []
    runs = 2 if setting.quick else RUNS
    cases = (("--help", 100.0), ("list", None), ("run --help", None))
    found = [
        row("f", f"ropewalk {words}", _times(["-m", "harness", *words.split()], runs), "ms", bar,
            above=False)
        for words, bar in cases
    ]  # fmt: skip
    return [*found, row("f", "python -c pass", _times(["-c", "pass"], runs), "ms", None)]


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
