"""Time outside the model: planning, bookkeeping, grading and writing, in per cent of the whole."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.setting import Row, Setting, build, config, row, tokens
from harness.engine import answers, forward, lm_head
from harness.runs.store import append, writing
from tasks import perplexity
from tasks.types import Loglikelihood, LoglikelihoodResponse, TaskContext

DOCUMENTS, LENGTH = 4, 2048
NOTHING = TaskContext(lambda _: [], lambda _: "", None, LENGTH, list)


def measure(setting: Setting) -> list[Row]:
    """Four documents of 2048 tokens, at two lengths each, graded and written to the disk."""
    return [_share(setting, *case) for case in (("S", 2.0), ("XS", 5.0))]


def _share(setting: Setting, shape: str, bar: float) -> Row:
    model = build(setting, config(shape), torch.float32)
    length = setting.size(LENGTH)
    texts = [tokens(model, length, seed) for seed in range(DOCUMENTS)]
    asked = [
        Loglikelihood(text[:n], 1, doc_id=f"{i}")
        for i, text in enumerate(texts)
        for n in (length // 2, length)
    ]
    list(answers(model, asked[:1]))
    shares = []
    for _ in range(setting.repeats):
        inside = [0.0]
        # The two functions in which the model computes: layers with their attention, head and loss.
        with (
            patch.object(forward, "_packed", _timed(setting, forward._packed, inside)),
            patch.object(lm_head, "read", _timed(setting, lm_head.read, inside)),
        ):
            began = setting.clock()
            _write(model, asked)
            whole = setting.clock() - began
        shares.append(100 * (whole - inside[0]) / whole)
    return row(
        "e", f"time outside the model, {shape}, {LENGTH} tokens", shares, "%", bar, above=False
    )


def _timed(setting: Setting, function: Any, inside: list[float]) -> Any:
    def timed(*given: Any, **named: Any) -> Any:
        began = setting.clock()
        try:
            return function(*given, **named)
        finally:
            inside[0] += setting.clock() - began

    return timed


def _write(model: Any, asked: list[Loglikelihood]) -> None:
    with tempfile.TemporaryDirectory() as folder, writing(Path(folder)) as held:
        for index, answer in answers(model, asked):
            assert isinstance(answer, LoglikelihoodResponse)
            sample = perplexity.grade(asked[index], answer, NOTHING)
            append(held, {"question": asked[index].digest, "value": sample.value})
