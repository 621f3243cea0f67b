"""Tokens a second, share of the peak, and the longest length that fits: on a GPU alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.setting import Row, Setting, build, config, operations, row, tokens
from harness.engine import OutOfMemory, answers
from tasks._types import Question

EIGHT = {
    "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256,
}  # fmt: skip
ONE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256,
}  # fmt: skip
LENGTHS = (8192, 32_768, 131_072)
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16 operations a second


def measure(setting: Setting) -> list[Row]:
    """Random weights of the shapes of Llama 3.2 1B and Llama 3 8B, one document, bfloat16."""
    if torch.device(setting.device).type != "cuda":
        return []
    return [*_passes(setting, "1B", ONE, None), *_passes(setting, "8B", EIGHT, 0.5)]


def _passes(setting: Setting, name: str, shape: dict[str, int], bar: float | None) -> list[Row]:
    shaped = config("S", **shape)
    model = build(setting, shaped, torch.bfloat16)
    device = torch.cuda.get_device_name(setting.device)
    peak = next((speed for kind, speed in PEAKS.items() if kind in device), None)
    found = []
    for length in LENGTHS:
        length = setting.size(length)
        asked = [Question("pass", length, tokens(model, length), 1)]
        list(answers(model, asked))
        (taken,) = setting.interleaved(partial(_answered, model, asked))
        speeds = [length / seconds for seconds in taken]
        found.append(row("gpu", f"{name} at {length}", speeds, "tokens/s", None, device))
        if peak:
            used = [operations(shaped, length) / seconds / peak for seconds in taken]
            held = bar if length == LENGTHS[-1] else None
            found.append(row("gpu", f"{name} at {length}, share of the peak", used, "", held))
    return [*found, _longest(setting, model, name)]


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
