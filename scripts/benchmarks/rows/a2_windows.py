"""The same sliding windows, all targets of each: one by one with full logits, and at once."""

from __future__ import annotations

import statistics

import torch

from benchmarks.setting import Row, Setting, agree, build, config, peer_loss, ratios, row, tokens
from harness.engine import answers
from tasks._types import Question

LENGTH, STRIDE, TEXT = 1024, 256, 4096


def measure(setting: Setting) -> list[Row]:
    """Windows of 1024 tokens every 256, the last 256 of each scored; model S."""
    return [_windows(setting, *case) for case in ((torch.float32, 1.7), (torch.bfloat16, 2.2))]


def _windows(setting: Setting, dtype: torch.dtype, bar: float) -> Row:
    model = build(setting, config("S"), dtype)
    length, stride, text = (setting.size(n) for n in (LENGTH, STRIDE, TEXT))
    given = tokens(model, text)
    windows = [given[a : a + length] for a in range(0, text - length + 1, stride)]
    questions = [Question("window", length, window, length - stride) for window in windows]
    theirs: list[float] = []
    ours: list[float] = []

    def peer() -> None:
        theirs[:] = [peer_loss(model, window, stride) for window in windows]

    def engine() -> None:
        found = sorted(answers(model, questions))
        ours[:] = [statistics.fmean(answer.nll) for _, answer in found if answer is not None]

    engine()
    slow, fast = setting.interleaved(peer, engine)
    kind = str(dtype).removeprefix("torch.")
    what = f"{len(windows)} sliding windows of {length} every {stride}, S, {kind}"
    return row("a2", what, ratios(slow, fast), "x", bar, agree(ours, theirs, dtype))
