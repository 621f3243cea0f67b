"""What a second thread gains, stage by stage of one pass: seconds of a wall, in one process."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict

import torch

from benchmarks.setting import Row, Setting, build, config, ratios, row, tokens
from benchmarks.stages import ATTENTION, HEAD, PRODUCTS, REST, by_operator, kind

DEVICE = "cpu"
MOST = 8  # threads
ALONE = 0.95  # least share of the cores that threads must have, else the wall says nothing
WHOLE = "the whole pass"
STAGES = (PRODUCTS, ATTENTION, REST, HEAD, WHOLE)


def measure(setting: Setting) -> list[Row]:
    """Row b's passes, with one thread and with one a core; nothing where other programs run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    many, before = min(cores or 1, MOST), torch.get_num_threads()
    if many == 1:
        print("t is not measured: it needs two cores.")
        return []
    cases, rows = ((torch.float32, 2048), (torch.bfloat16, 4096)), list[Row]()
    try:
        for case in cases:
            found, share = _pass(setting, many, *case)
            if share < ALONE and not setting.quick:
                print(f"t is not measured: {many} threads had {share:.0%} of as many cores, beside "
                      f"other programs, and need {ALONE:.0%}.")  # fmt: skip
                return []
            rows += found
    finally:
        torch.set_num_threads(before)
    return rows


def _pass(setting: Setting, many: int, dtype: torch.dtype, length: int) -> tuple[list[Row], float]:
    """Return the gain of every stage, and the share of the cores that many threads had."""
    model, length = build(setting, config("S"), dtype), setting.size(length)
    text, shares = tokens(model, length), list[float]()
    one, other = (defaultdict[str, list[float]](list) for _ in range(2))
    for turn in range(-1, 1 if setting.quick else setting.repeats):
        for threads, found in ((1, one), (many, other)):
            torch.set_num_threads(threads)
            stages = _seconds(model, text)
            for stage in STAGES if turn >= 0 else ():  # the first pass of a process is slow
                found[stage].append(stages[stage])
        shares.append(_share(setting, many))
    share = statistics.fmean(shares)
    what = f"gain of {many} threads by the wall, S, {str(dtype).removeprefix('torch.')}, {length}"
    held = f"{share:.0%} of {many} cores held"
    return [
        row("t", f"{what}: {stage}", ratios(one[stage], other[stage]), "x", None, held)
        for stage in STAGES
    ], share


def _share(setting: Setting, threads: int) -> float:
    """Return the share of as many cores that these threads have, while all of them compute."""
    factor = torch.randn(2 * [setting.size(4096)])
    wall, used = time.perf_counter(), time.process_time()
    torch.mm(factor, factor)
    return (time.process_time() - used) / (time.perf_counter() - wall) / threads


def _seconds(model: object, text: tuple[int, ...]) -> dict[str, float]:
    """Return the seconds of every stage of a pass."""
    operators, whole = by_operator(model, text, time.perf_counter)
    found = defaultdict(float, {WHOLE: whole})
    for called, seconds in operators.items():
        found[kind(called)] += seconds
    return found
