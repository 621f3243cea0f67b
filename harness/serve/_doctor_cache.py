"""Does generation with a cache agree with one forward of the whole text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from transformers import DynamicCache

from harness.methods.findings import Finding
from scaling.types import Rotation

SHORT, STEPS = 48, 64  # tokens of the text where it passes no window; the last ones, one by one
PAST = 16  # tokens behind the end of a window, at least, and before: there stateful types change
LONGEST = 16_384  # tokens of the text
BANDED = 1024  # of moved positions, whose forward holds scores of all pairs
# Tokens x parameters that are read, twice: a minute or two on few cores, seconds on a GPU.
SPENT = {"cpu": 1e12}
ELSEWHERE = 1e14
ALLOWED = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}  # in log-probability
Windows = Mapping[str, int]  # tokens, by what the window is called in a sentence


def affordable(model: Any, rotation: Rotation) -> int:
    """Return how many tokens of a text may be read twice, by the time and memory they take."""
    spent = SPENT.get(model.device.type, ELSEWHERE) / model.num_parameters()
    return max(SHORT, min(BANDED if rotation.moves_positions else LONGEST, int(spent)))


def checked_length(windows: Windows, most: int) -> int:
    """Return how many tokens are compared: past as many windows as ``most`` tokens allow."""
    passed = [window for window in windows.values() if window + PAST <= most]
    return min(most, max(SHORT, max(passed, default=0) * 3 // 2))


@torch.inference_mode()
def cache_finding(model: Any, tokens: list[int], windows: Windows, limit: str) -> Finding:
    """Compare the log-probabilities of a text read at once and read in parts.

    One part ends shortly before a window does, where a stateful type begins anew, and the last ones
    are single tokens. ``limit`` says why the text is no longer, for a window that it does not pass.
    """
    given, size = torch.tensor([tokens], device=model.device), len(tokens)
    steps = min(size // 2, STEPS)
    single = range(size - steps, size + 1)
    ends = sorted({max(1, w - PAST) for w in windows.values() if w < single[0]} | {*single})
    whole = _probabilities(
        model(input_ids=given, use_cache=False, logits_to_keep=steps + 1).logits, given
    )
    parts, cache = [], DynamicCache(config=model.config)
    for start, stop in pairwise([0, *ends]):
        part = given[:, start:stop]
        out = model(input_ids=part, past_key_values=cache, use_cache=True, logits_to_keep=1)
        parts.append(out.logits)
    stepped = _probabilities(torch.cat(parts[-steps - 1 :], 1), given)
    apart = (whole - stepped).abs()
    worst, allowed = float(apart.max()), ALLOWED.get(model.dtype, 0.5)
    if not bool(torch.isfinite(whole).all()):
        told = (
            f"the model's predictions of {size:,} tokens are not numbers: its weights are damaged"
        )
        return Finding("cache", "failed", told)
    first = f"{size:,} tokens, the last {steps} one by one"
    if worst <= allowed:
        told = (
            f"{first}, have the losses of one forward (largest difference {worst:.1g}; at most "
            f"{allowed:g} is allowed in {str(model.dtype).removeprefix('torch.')})"
        )
        return Finding("cache", "passed", told + _not_passed(windows, size, limit))
    at = size - steps + int((~(apart <= allowed)).nonzero()[0])
    told = (
        f"{first}, differ from one forward by up to {worst:.2g} (at most {allowed:g} is allowed), "
        f"from token {at} on: keys that were cached are not those of the whole text"
    )
    return Finding("cache", "failed", told)


def _not_passed(windows: Windows, size: int, limit: str) -> str:
    """Return how a sentence goes on where a text does not pass a window."""
    left = [f"{name} of {window:,} tokens" for name, window in windows.items() if window >= size]
    return f"; past {' and '.join(left)} nothing was compared: {limit}" if left else ""


def _probabilities(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of the last tokens, one fewer than logits are given, float32."""
    found = logits[0, :-1].float().log_softmax(-1)
    return found.gather(1, tokens[0, -len(found) :, None])[:, 0]
