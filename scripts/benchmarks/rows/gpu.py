"""Tokens a second, memory, what moving positions costs and the longest length: on a GPU alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.rows.g_positions import BAR, METHODS
from benchmarks.setting import Row, Setting, build, config, operations, ratios, row, tokens
from harness.engine import OutOfMemory, answers
from harness.methods.resolve import resolve
from harness.plugins import load
from harness.rope.config import rope_of
from harness.rope.patch import scaled
from tasks._types import Question

DEVICE = "cuda"
EIGHT = {
    "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256,
}  # fmt: skip
ONE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256,
}  # fmt: skip
LENGTHS = (8192, 32_768, 131_072)
TRAINED = 8192  # window of the models whose positions are moved, to four times it
WHOLE = "weights, two layers' hidden states and one layer's keys and values"
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16 operations a second


def measure(setting: Setting) -> list[Row]:
    """Random weights of the shapes of Llama 3.2 1B and Llama 3 8B, one document, bfloat16."""
    return [*_passes(setting, "1B", ONE, None), *_passes(setting, "8B", EIGHT, 0.5)]


def _passes(setting: Setting, name: str, shape: dict[str, int], bar: float | None) -> list[Row]:
    shaped = config("S", **shape, max_position_embeddings=TRAINED)
    model = build(setting, shaped, torch.bfloat16)
    device = torch.cuda.get_device_name(setting.device)
    peak = next((speed for kind, speed in PEAKS.items() if kind in device), None)
    found = []
    for length in LENGTHS:
        length = setting.size(length)
        asked = [Question("pass", length, tokens(model, length), 1)]
        list(answers(model, asked))
        held = torch.cuda.memory_allocated(setting.device)
        torch.cuda.reset_peak_memory_stats(setting.device)
        (taken,) = setting.interleaved(partial(_answered, model, asked))
        most = torch.cuda.max_memory_allocated(setting.device) - held
        speeds = [length / seconds for seconds in taken]
        found.append(row("gpu", f"{name} at {length}", speeds, "tokens/s", None, device))
        what = f"{name} at {length}, peak memory over {WHOLE}"
        found.append(row("gpu", what, [(held + most) / _whole(shaped, length, held)], "x", 1.0,
                         above=False))  # fmt: skip
        if peak:
            used = [operations(shaped, length) / seconds / peak for seconds in taken]
            least = bar if length == LENGTHS[-1] else None
            found.append(row("gpu", f"{name} at {length}, share of the peak", used, "", least))
    return [*found, *_positions(setting, model, name), _longest(setting, model, name)]


def _whole(shaped: Any, length: int, weights: int) -> float:
    """Return bytes of weights, hidden states of two layers, and one layer's keys and values."""
    groups: int = shaped.num_key_value_heads * shaped.head_dim
    width: int = shaped.hidden_size
    return weights + 2 * length * (2 * width + 2 * groups)


def _positions(setting: Setting, model: Any, name: str) -> list[Row]:
    """Every method that moves positions over the plain frequencies, at four windows."""
    rope, length = rope_of(model.config), setting.size(LENGTHS[1])
    asked = [Question("pass", length, tokens(model, length), 1)]

    def passed(method: str) -> None:
        with scaled(model, resolve(load("method", method), rope, length)):
            _answered(model, asked)

    found = []
    for method in METHODS:
        passed(method)
        taken, plain = setting.interleaved(partial(passed, method), partial(passed, "none"))
        what = f"{method}: time over that of plain frequencies, {name} at {length}"
        found.append(row("gpu", what, ratios(taken, plain), "x", BAR, above=False))
    return found


def _answered(model: Any, asked: list[Question]) -> None:
    list(answers(model, asked))


def _longest(setting: Setting, model: Any, name: str) -> Row:
    """Double the length until memory runs out."""
    fits, length = 0, setting.size(LENGTHS[-1])
    while True:
        ((_, answer),) = answers(
            model, [Question("long", length, tokens(model, length), length - 1)]
        )
        if isinstance(answer, OutOfMemory):
            return row("gpu", f"{name}, longest power of two that fits", [fits], "tokens", None)
        fits, length = length, 2 * length
