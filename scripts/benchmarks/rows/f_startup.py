"""CPU time from the shell to the answer of commands that need no model."""

from __future__ import annotations

import os
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
        before = os.times()
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        after = os.times()
        spent = after.children_user - before.children_user
        found.append(1000 * (spent + after.children_system - before.children_system))
    return found
