"""Speed, share of the peak, memory, what moving positions costs, the longest length: on a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks import gpu
from benchmarks.rows.g_positions import BAR, METHODS
from benchmarks.setting import Row, Setting, operations, ratios, row, tokens
from harness.engine import OutOfMemory, answers
from harness.methods.resolve import resolve
from harness.patching.config import rope_of
from harness.patching.patch import scaled
from harness.plugins import load
from tasks.types import Loglikelihood

DEVICE = "cuda"
SHARE = 0.5  # bar of the longest pass
WHOLE = "weights, two layers' hidden states and one layer's keys and values"
# Dense bfloat16 operations a second, by NVIDIA's data sheets; the first name that fits.
PEAKS = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H200 NVL": 835e12, "H100": 989e12, "H200": 989e12,
    "A100": 312e12,
}  # fmt: skip
LONGEST = 2**20  # tokens
PATIENCE = 60.0  # seconds of a pass, of which the next takes up to four times


def measure(setting: Setting) -> list[Row]:
    """Random weights, one document, bfloat16."""
    return gpu.measured(setting, _model)


def _model(setting: Setting, name: str, model: Any) -> list[Row]:
    found = []
    for number, length in enumerate(map(setting.size, gpu.LENGTHS)):
        what, last = f"{name} at {length}", number == len(gpu.LENGTHS) - 1
        found += gpu.fitting(what, partial(_pass, setting, model, length, what, last))
        if number:
            moved = f"methods that move positions, {what}"
            found += gpu.fitting(moved, partial(_positions, setting, model, length, what))
    return [*found, _longest(setting, model, name)]


def _pass(setting: Setting, model: Any, length: int, what: str, last: bool) -> list[Row]:
    asked = gpu.one_pass(model, length)
    gpu.answered(setting, model, asked)
    torch.cuda.reset_peak_memory_stats(setting.device)
    (taken,) = setting.interleaved(partial(gpu.answered, setting, model, asked))
    most = torch.cuda.max_memory_allocated(setting.device)
    device = torch.cuda.get_device_name(setting.device)
    speeds = [length / seconds for seconds in taken]
    over = most / _whole(model, length)
    found = [
        row("gpu", what, speeds, "tokens/s", None, device),
        row("gpu", f"{what}, peak memory over {WHOLE}", [over], "x", 1.0, above=False),
    ]
    peak = next((speed for kind, speed in PEAKS.items() if kind in device), None)
    if peak is None:
        print(f"gpu: {what}: the share of the peak is not told, for that of {device} is not known.")
        return found
    shares = [operations(model.config, length) / seconds / peak for seconds in taken]
    of = f"{what}, share of the peak of {peak / 1e12:.0f} * 10^12 operations a second"
    return [*found, row("gpu", of, shares, "", SHARE if last else None)]


def _whole(model: Any, length: int) -> float:
    """Return bytes of weights, hidden states of two layers, and one layer's keys and values."""
    shaped, item = model.config, model.dtype.itemsize
    weights = sum(weight.nbytes for weight in model.parameters())
    groups = shaped.num_key_value_heads * shaped.head_dim
    return float(weights + item * length * (2 * shaped.hidden_size + 2 * groups))


def _positions(setting: Setting, model: Any, length: int, where: str) -> list[Row]:
    """Every method that moves positions over the plain frequencies."""
    rope, asked = rope_of(model.config), gpu.one_pass(model, length)

    def passed(method: str) -> None:
        with scaled(model, resolve(load("method", method), rope, length)):
            gpu.answered(setting, model, asked)

    found = []
    for method in METHODS:
        passed(method)
        taken, plain = setting.interleaved(partial(passed, method), partial(passed, "none"))
        what = f"{method}: time over that of plain frequencies, {where}"
        found.append(row("gpu", what, ratios(taken, plain), "x", BAR, above=False))
    return found


def _longest(setting: Setting, model: Any, name: str) -> Row:
    """Double the length until memory runs out, or a bound of length or time is reached."""
    fits, length, told = 0, setting.size(gpu.LENGTHS[0]), "longer was not tried"
    while length <= setting.size(LONGEST):
        question = Loglikelihood(tokens(model, length), length - 1, doc_id="long")
        began = setting.clock()
        ((_, answer),) = answers(model, [question])
        taken = setting.clock() - began
        if isinstance(answer, OutOfMemory):
            told = f"{length} ran out of memory"
            break
        fits = length
        if taken > PATIENCE:
            told = f"longer was not tried: this took {taken:.0f} s"
            break
        length *= 2
    return row("gpu", f"{name}, longest power of two that fits", [fits], "tokens", None, told)
