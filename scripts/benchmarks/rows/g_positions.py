"""What moving positions costs: each method against the plain frequencies, and what is shared."""

from __future__ import annotations

import statistics
from operator import itemgetter
from typing import Any

import torch

from benchmarks.setting import Row, Setting, counted, over_law, ratios, row
from harness.data.corpus import make_source
from harness.engine import answers
from harness.methods.resolve import resolve
from harness.models.checkpoint import Checkpoint, open_checkpoint
from harness.models.weights import load_weights
from harness.patching.patch import scaled
from harness.plugins import load
from tasks import passkey

DEVICE = "cpu"
METHODS = (
    "rerope", "leaky_rerope", "self_extend", "dual_chunk", "string", "lm_infinite", "log_n",
    "dynamic_ntk:mode=per_query",
)  # fmt: skip
BAR = 3.0
GRIDS = ("rerope", "dual_chunk")


def measure(setting: Setting) -> list[Row]:
    """The reference model's layers over one sequence, and passkey grids; float32."""
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
    rows = [
        row("g", f"{name}: {what}", values, "x", BAR, above=False) for name, values in found.items()
    ]
    return rows + [one for name in GRIDS for one in _grid(setting, opened, model, name)]


def _grid(setting: Setting, opened: Checkpoint, model: Any, name: str) -> list[Row]:
    """Five depths with 4 trials at four windows: each prompt alone against all together."""
    source = make_source(opened.tokenizer, list, opened.rope.trained_length)
    length = setting.size(4 * opened.rope.trained_length)
    asked = list(passkey.ask(source, (length,), depths=5, trials=4))
    found: list[list[object]] = [[], []]

    def alone() -> None:
        found[0] = [answer for one in asked for _, answer in answers(model, [one])]

    def together() -> None:
        found[1] = [answer for _, answer in sorted(answers(model, asked), key=itemgetter(0))]

    with scaled(model, resolve(load("method", name), opened.rope, length)):
        list(answers(model, asked[:1]))  # the check of a model
        gained = ratios(*setting.interleaved(alone, together))
        law = counted(alone) / counted(together)
    assert found[0] == found[1], "what is shared has other answers"
    what = f"{name}: passkey at {length} tokens, 5 depths, 4 trials, each alone over all together"
    return [row("g", what, gained, "x", None, "bit for bit"), over_law("g", gained, law, bar=None)]
