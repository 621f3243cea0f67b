"""A perplexity curve over the first L tokens of a document, at 8 and at 16 lengths."""

from __future__ import annotations

import statistics

import torch

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
from tasks._types import Answer, Question


def measure(setting: Setting) -> list[Row]:
    """Against one full forward with full logits a length."""
    cases = (
        ("S", torch.bfloat16, 8, 5.0),
        ("S", torch.float32, 8, None),
        ("XS", torch.bfloat16, 16, 8.0),
    )
    return [found for case in cases for found in _curve(setting, *case)]


def _curve(
    setting: Setting, shape: str, dtype: torch.dtype, count: int, bar: float | None
) -> list[Row]:
    shaped = config(shape)
    model, step = build(setting, shaped, dtype), setting.size(512)
    lengths = [step * (i + 1) for i in range(count)]
    text = tokens(model, lengths[-1])
    questions = [Question("curve", n, text[:n], 1) for n in lengths]
    theirs: list[float] = []
    ours: list[float] = []

    def peer() -> None:
        theirs[:] = [peer_loss(model, text[:n]) for n in lengths]

    def engine() -> None:
        found = sorted(answers(model, questions))
        ours[:] = [
            statistics.fmean(answer.nll) for _, answer in found if isinstance(answer, Answer)
        ]

    engine()  # the check of the model, once
    slow, fast = setting.interleaved(peer, engine)
    same = agree(ours, theirs, dtype)
    law = sum(operations(shaped, n) for n in lengths) / operations(shaped, lengths[-1])
    kind = f"{shape}, {str(dtype).removeprefix('torch.')}, {count} lengths to {lengths[-1]}"
    gained = ratios(slow, fast)
    return [
        row("a1", f"prefix curve, {kind}", gained, "x", bar, same),
        over_law("a1", gained, law, 1.2),
    ]
