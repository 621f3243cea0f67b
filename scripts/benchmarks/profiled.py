"""Print the shares of the CPU time of row b's two passes, by operator, as a page of Markdown.

``OMP_NUM_THREADS=1 PYTHONPATH=scripts .venv/bin/python -m benchmarks.profiled``
"""

from __future__ import annotations

import time
from collections import defaultdict

import torch

from benchmarks.__main__ import CALIBRATED, _calibrated, _machine
from benchmarks.setting import Setting, build, config, tokens
from benchmarks.stages import ATTENTION, PRODUCTS, by_operator, kind

LEAST = 0.01  # share of an operator that has a line of its own
PASSES = 3


def page(setting: Setting) -> str:
    """Return the page: a line a group of operators, a column a pass."""
    cases = ((torch.float32, setting.size(2048)), (torch.bfloat16, setting.size(4096)))
    began, passes = _calibrated(setting), [_shares(setting, *case) for case in cases]
    shares = [shares for shares, _ in passes]
    groups = sorted({*shares[0], *shares[1]}, key=lambda group: -sum(one[group] for one in shares))
    shown = [group for group in groups if max(one[group] for one in shares) >= LEAST]
    lines = [(group, [one[group] for one in shares]) for group in shown]
    lines.append(("what is left, less than 1 % each", [
        sum(share for group, share in one.items() if group not in shown) for one in shares
    ]))  # fmt: skip
    kinds = [f"{str(dtype).removeprefix('torch.')}, {length} tokens" for dtype, length in cases]
    speed = f"{CALIBRATED}{began}, at the end {_calibrated(setting)}"
    return "\n".join([
        "# Where the time of a pass goes",
        "",
        "Printed by `python -m benchmarks.profiled`: not to be edited. Shares of the CPU time of",
        f"row b's passes, model S, {PASSES} of each, one thread.",
        "",
        f"{time.strftime('%Y-%m-%d')}, {_machine(setting.device)}; {speed}.",
        "",
        f"| operators | {' | '.join(kinds)} |",
        "|---|---:|---:|",
        *(f"| {group} | {' | '.join(f'{share:.1%}' for share in each)} |" for group, each in lines),
        f"| seconds of CPU time a pass | {' | '.join(f'{taken:.2f}' for _, taken in passes)} |",
    ])  # fmt: skip


def _shares(setting: Setting, dtype: torch.dtype, length: int) -> tuple[dict[str, float], float]:
    """Return the share of each group of operators, 1 in all, and the seconds of one pass."""
    model = build(setting, config("S"), dtype)
    text = tokens(model, length)
    found, taken = defaultdict[str, float](float), 0.0
    by_operator(model, text, setting.clock)  # the first pass of a process is slow
    for _ in range(PASSES):
        operators, whole = by_operator(model, text, setting.clock)
        taken += whole
        found["no operator: Python, the timing itself"] += whole - sum(operators.values())
        for called, seconds in operators.items():
            found[_group(called)] += seconds
    for group in found:
        found[group] /= taken
    return found, taken / PASSES


def _group(called: tuple[bool, str]) -> str:
    """Return products, attention, or the operator, and where it is called."""
    head, operator = called
    layers = kind((False, operator))
    if layers == PRODUCTS:
        return "products of the head" if head else PRODUCTS
    if layers == ATTENTION:
        return ATTENTION
    return f"`{operator}` of the {'head and its losses' if head else 'layers'}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(page(Setting()))
