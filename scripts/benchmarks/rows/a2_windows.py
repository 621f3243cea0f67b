"""The same sliding windows, all targets of each: one by one with full logits, and at once."""

from __future__ import annotations

import statistics

import torch

from benchmarks.setting import (
    Row,
    Setting,
    agree,
    build,
    config,
    counted,
    over_law,
    peer_loss,
    ratios,
    row,
    tokens,
)  # fmt: skip
from harness.engine import answers
from tasks.types import Loglikelihood, LoglikelihoodResponse

DEVICE = "cpu"
LENGTH, STRIDE, TEXT = 1024, 256, 4096


def measure(setting: Setting) -> list[Row]:
    """Windows of 1024 tokens every 256, the last 256 of each scored; model S."""
    kinds = (torch.float32, torch.bfloat16)
    return [found for kind in kinds for found in _windows(setting, kind)]


def _windows(setting: Setting, dtype: torch.dtype) -> list[Row]:
    model = build(setting, config("S"), dtype)
    length, stride, text = (setting.size(n) for n in (LENGTH, STRIDE, TEXT))
    given = tokens(model, text)
    windows = [given[a : a + length] for a in range(0, text - length + 1, stride)]
    questions = [Loglikelihood(window, length - stride, doc_id="window") for window in windows]
    theirs: list[float] = []
    ours: list[float] = []

    def peer() -> None:
        theirs[:] = [peer_loss(model, window, stride) for window in windows]

    def engine() -> None:
        found = sorted(answers(model, questions))
        ours[:] = [
            statistics.fmean(answer.nll)
            for _, answer in found
            if isinstance(answer, LoglikelihoodResponse)
        ]

    engine()
    slow, fast = setting.interleaved(peer, engine)
    kind = str(dtype).removeprefix("torch.")
    what = f"{len(windows)} sliding windows of {length} every {stride}, S, {kind}"
    gained = ratios(slow, fast)
    return [
        row("a2", what, gained, "x", None, agree(ours, theirs, dtype)),
        over_law("a2", gained, counted(peer) / counted(engine)),
    ]
