"""A perplexity curve over the first L tokens of a document, at 8 and at 16 lengths."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from benchmarks.calibration import attention_seconds, matrix_speed
from benchmarks.setting import (
    Row,
    Setting,
    agree,
    build,
    config,
    operations,
    over_law,
    peer_loss,
    ratios,
    row,
    tokens,
)  # fmt: skip
from harness.engine import answers
from tasks.types import Loglikelihood, LoglikelihoodResponse


def measure(setting: Setting) -> list[Row]:
    """Against one full forward with full logits a length."""
    if torch.device(setting.device).type == "cuda":
        return _curve(setting, "1B", torch.bfloat16, 8)
    cases = (
        ("S", torch.bfloat16, 8),
        ("S", torch.float32, 8),
        ("XS", torch.bfloat16, 16),
    )
    return [found for case in cases for found in _curve(setting, *case)]


def _curve(setting: Setting, shape: str, dtype: torch.dtype, count: int) -> list[Row]:
    shaped = config(shape)
    model, step = build(setting, shaped, dtype), setting.size(512)
    lengths = [step * (i + 1) for i in range(count)]
    text = tokens(model, lengths[-1])
    questions = [Loglikelihood(text[:n], 1, doc_id="curve") for n in lengths]
    theirs: list[float] = []
    ours: list[float] = []

    def peer() -> None:
        theirs[:] = [peer_loss(model, text[:n]) for n in lengths]

    def engine() -> None:
        found = sorted(answers(model, questions))
        ours[:] = [
            statistics.fmean(answer.nll)
            for _, answer in found
            if isinstance(answer, LoglikelihoodResponse)
        ]

    engine()  # the check of the model, once
    slow, fast = setting.interleaved(peer, engine)
    same = agree(ours, theirs, dtype)
    kind = f"{shape}, {str(dtype).removeprefix('torch.')}, {count} lengths to {lengths[-1]}"
    gained = ratios(slow, fast)
    return [
        row("a1", f"prefix curve, {kind}", gained, "x", None, same),
        over_law("a1", gained, _law([operations(shaped, n) for n in lengths])),
        over_law("a1", gained, _law(_kernels(setting, shaped, dtype, lengths)), "time law"),
    ]


def _law(costs: list[float]) -> float:
    """Return the cost of all lengths, which grows, over that of the longest."""
    return sum(costs) / costs[-1]


def _kernels(setting: Setting, shaped: Any, dtype: torch.dtype, lengths: list[int]) -> list[float]:
    """Return the seconds that products and causal attention take here, a forward a length."""
    layers, heads = shaped.num_hidden_layers, shaped.num_attention_heads
    speed = matrix_speed(setting, dtype)
    return [
        (operations(shaped, n) - 2 * layers * heads * 64 * n * (n + 1)) / speed
        + layers * attention_seconds(setting, dtype, heads, n)
        for n in lengths
    ]
