"""Which losses have the same bits on a GPU: run to run, shared and alone, and in other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import gpu
from benchmarks.rows.gpu_sharing import grid
from benchmarks.setting import MIB, Row, Setting, row
from harness.engine import Sizes
from tasks.types import LoglikelihoodResponse, ModelRequest

DEVICE = "cuda"
CASES = (("1B", torch.float32), ("1B", torch.bfloat16), ("8B", torch.bfloat16))
OTHER = Sizes(pack=2048, chunk=1024, layer=64 * MIB, logits=4 * MIB)


def measure(setting: Setting) -> list[Row]:
    """A prefix curve and a grid of pass keys at the shortest length; random weights."""
    return gpu.measured(setting, _model, CASES)


def _model(setting: Setting, name: str, model: Any) -> list[Row]:
    length, found = setting.size(gpu.LENGTHS[0]), list[Row]()
    kinds = {"prefix curve": gpu.curve(model, length), "passkey": grid(length)}
    for kind, asked in kinds.items():
        what = f"{name}, {str(model.dtype).removeprefix('torch.')}, {kind} to {length}"
        found += gpu.fitting(what, partial(_compared, setting, model, asked, what))
    return found


def _compared(setting: Setting, model: Any, asked: list[ModelRequest], what: str) -> list[Row]:
    first = gpu.answered(setting, model, asked)
    ways = {
        "run again": gpu.answered(setting, model, asked),
        "each question alone": [gpu.answered(setting, model, [one])[0] for one in asked],
        "in other sizes": gpu.answered(setting, model, asked, OTHER),
    }
    return [unequal(f"{what}, {way}", first, found) for way, found in ways.items()]


def unequal(
    what: str, one: Sequence[LoglikelihoodResponse], other: Sequence[LoglikelihoodResponse]
) -> Row:
    """Return the share of losses that are not equal bit for bit, with counts and how far apart."""
    pairs = list(zip(one, other, strict=True))
    losses = [both for a, b in pairs for both in zip(a.nll, b.nll, strict=True)]
    best = [both for a, b in pairs for both in zip(a.argmax, b.argmax, strict=True)]
    apart = [abs(a - b) for a, b in losses if a != b]
    moved = sum(a != b for a, b in best)
    told = (
        f"{len(apart)} of {len(losses)} losses unequal, at most {max(apart, default=0.0):.1e} nats"
        f" apart; {moved} of {len(best)} likeliest tokens"
    )
    share = 100 * len(apart) / len(losses)
    return row("gpu", f"losses not bit-equal: {what}", [share], "%", None, told, above=False)
