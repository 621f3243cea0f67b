"""Peak memory above the loaded model against length, each point in a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.setting import Row, Setting, build, config, peer_loss, row, tokens
from harness.engine import answers
from tasks.types import Loglikelihood

DEVICE = "cpu"
LAYERS = 4  # of the models with another vocabulary
RUNS = 3  # of the engine at each point: a system takes idle pages away as it likes


def measure(setting: Setting) -> list[Row]:
    """Slopes in KiB a token, and how far below full logits; bfloat16."""
    long = [setting.size(n) for n in (4096, 8192, 16_384)]
    ours = {n: _peak("engine", 32_000, 8, n) for n in long}
    theirs = {n: _peak("peer", 32_000, 8, n) for n in (long[0] // 2, long[0])}
    small = {n: _peak("engine", 4096, LAYERS, n) for n in long}
    large = {n: _peak("engine", 128_256, LAYERS, n) for n in long}
    wide = _peak("peer", 128_256, LAYERS, long[0])
    ends = f"from {long[0]} to {long[-1]}"
    at = long[0]
    return [
        row("c", f"KiB a token {ends}, S, bfloat16", [_slope(ours)], "KiB", 7.0, above=False),
        row("c", "the same of full logits with labels", [_slope(theirs)], "KiB", None),
        row("c", f"full logits over ours at {at}", [theirs[at] / ours[at]], "x", 14.0),
        row("c", f"the same at vocabulary 128k, {LAYERS} layers", [wide / large[at]], "x", 20.0),
        row("c", "KiB a token at vocabulary 4k", [_slope(small)], "KiB", 7.0, above=False),
        row("c", "KiB a token at vocabulary 128k", [_slope(large)], "KiB", 7.0, above=False),
    ]


def _slope(peaks: dict[int, float]) -> float:
    """Return KiB a token between the first and the last point."""
    (first, low), *_, (last, high) = sorted(peaks.items())
    return (high - low) / (last - first) / 1024


def _peak(way: str, vocabulary: int, layers: int, length: int) -> float:
    """Return the peak of a child process above what it held before, in bytes."""
    given = json.dumps([way, vocabulary, layers, length])
    command = [sys.executable, "-m", "benchmarks.rows.c_memory", given]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True)
        for _ in range(RUNS if way == "engine" else 1)
    ]
    return statistics.median(float(done.stdout) for done in runs)


def child(way: str, vocabulary: int, layers: int, length: int) -> float:
    """Run one pass in this process and return its peak above the loaded model, in bytes."""
    torch.set_num_threads(1)
    shaped = config("S", vocab_size=vocabulary, num_hidden_layers=layers)
    model = build(Setting(), shaped, torch.bfloat16)
    given = tokens(model, length)

    def run(length: int) -> Any:
        if way == "peer":
            return peer_loss(model, given[:length])
        return list(answers(model, [Loglikelihood(given[:length], 1, doc_id="q")]))

    run(64)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    run(length)
    return _status("VmHWM") - before


def _status(field: str) -> float:
    """Return a memory figure of this process in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return float(line.split()[1]) * 1024
    raise KeyError(field)


if __name__ == "__main__":
    print(child(*json.loads(sys.argv[1])))
