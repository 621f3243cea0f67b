"""What moving positions costs: each method against the plain frequencies, at eight windows."""

from __future__ import annotations

import statistics

import torch

from benchmarks.setting import Row, Setting, row
from harness.methods.resolve import resolve
from harness.model.checkpoint import open_checkpoint
from harness.model.weights import load_weights
from harness.plugins import load
from harness.rope.patch import scaled

METHODS = (
    "rerope", "leaky_rerope", "self_extend", "dual_chunk", "string", "lm_infinite", "log_n",
    "dynamic_ntk:mode=per_query",
)  # fmt: skip
BAR = 3.0


def measure(setting: Setting) -> list[Row]:
    """The reference model's layers over one sequence; float32."""
    opened = open_checkpoint(
        "reference", revision=None, dtype="float32", device=setting.device,
        trust_remote_code=False, allow_pickle=False,
    )  # fmt: skip
    model, length = load_weights(opened), setting.size(8 * opened.rope.trained_length)
    ids = torch.arange(length, device=setting.device)[None] % opened.config.vocab_size

    def seconds(given: str) -> float:
        rotation = resolve(load("method", given), opened.rope, length)
        with scaled(model, rotation), torch.inference_mode():
            began = setting.clock()
            model.model(input_ids=ids, use_cache=False)
            return setting.clock() - began

    seconds("none")  # the first pass of a process is slow
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for _ in range(setting.repeats):
        plain = statistics.fmean(seconds("none") for _ in range(2))
        for name in METHODS:
            found[name].append(seconds(name) / plain)
    what = f"time over that of plain frequencies, reference, {length} tokens"
    return [
        row("g", f"{name}: {what}", values, "x", BAR, above=False) for name, values in found.items()
    ]
