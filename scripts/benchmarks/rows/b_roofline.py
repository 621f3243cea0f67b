"""How near one pass comes to the time of its matrix products and attentions alone."""

from __future__ import annotations

import torch

from benchmarks.calibration import attention_seconds, matrix_speed
from benchmarks.setting import Row, Setting, build, config, operations, row, tokens
from harness.engine import answers
from tasks._types import Question


def measure(setting: Setting) -> list[Row]:
    """Model S; the two kernels are timed in the same process, in turns with the passes."""
    return [
        _share(setting, *case)
        for case in ((torch.float32, 2048, 0.78), (torch.bfloat16, 4096, 0.54))
    ]


def _share(setting: Setting, dtype: torch.dtype, length: int, bar: float) -> Row:
    shaped, length = config("S"), setting.size(length)
    model = build(setting, shaped, dtype)
    questions = [Question("pass", length, tokens(model, length), 1)]
    heads, layers = shaped.num_attention_heads, shaped.num_hidden_layers
    scores = 2 * layers * heads * 64 * length * (length + 1)
    list(answers(model, questions))
    shares = []
    for _ in range(setting.repeats):
        speed = matrix_speed(setting, dtype)
        attention = layers * attention_seconds(setting, dtype, heads, length)
        began = setting.clock()
        list(answers(model, questions))
        taken = setting.clock() - began
        shares.append(((operations(shaped, length) - scores) / speed + attention) / taken)
    kind = str(dtype).removeprefix("torch.")
    return row("b", f"share of the operation roofline, S, {kind}, {length}", shares, "", bar)
