"""How near one pass comes to the time of its products and attentions, and transformers' pass."""

from __future__ import annotations

import statistics

import torch

from benchmarks.calibration import attention_seconds, matrix_speed
from benchmarks.setting import (
    Row,
    Setting,
    agree,
    build,
    config,
    operations,
    peer_loss,
    ratios,
    row,
    tokens,
)  # fmt: skip
from harness.engine import answers
from tasks.types import Loglikelihood, LoglikelihoodResponse

ROOFLINE, FORWARD = 0.85, 1.0  # bars


def measure(setting: Setting) -> list[Row]:
    """Model S; the two kernels are timed in the same process, in turns with the passes."""
    cases = ((torch.float32, 2048), (torch.bfloat16, 4096))
    return [found for case in cases for found in _pass(setting, *case)]


def _pass(setting: Setting, dtype: torch.dtype, length: int) -> list[Row]:
    shaped, length = config("S"), setting.size(length)
    model = build(setting, shaped, dtype)
    text = tokens(model, length)
    heads, layers = shaped.num_attention_heads, shaped.num_hidden_layers
    scores = 2 * layers * heads * 64 * length * (length + 1)
    theirs: list[float] = []
    ours: list[float] = []

    def peer() -> None:
        theirs[:] = [peer_loss(model, text)]

    def engine() -> None:
        ((_, answer),) = answers(model, [Loglikelihood(text, 1, doc_id="pass")])
        ours[:] = (
            [statistics.fmean(answer.nll)] if isinstance(answer, LoglikelihoodResponse) else []
        )

    engine()
    shares, forwards = list[float](), list[float]()
    for _ in range(setting.repeats):
        speed = matrix_speed(setting, dtype)
        attention = layers * attention_seconds(setting, dtype, heads, length)
        (slow,), (fast,) = setting.interleaved(peer, engine, turns=1)
        shares.append(((operations(shaped, length) - scores) / speed + attention) / fast)
        forwards += ratios([slow], [fast])
    kind = f"S, {str(dtype).removeprefix('torch.')}, {length}"
    same = agree(ours, theirs, dtype)
    return [
        row("b", f"share of the operation roofline, {kind}", shares, "", ROOFLINE),
        row("b", f"one forward with labels, {kind}", forwards, "x", FORWARD, same),
    ]
