"""Does generation with a cache agree with one forward of the whole text."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from harness.methods.findings import Finding

SHORT, LONGEST = 48, 1024  # tokens of the text: past the window where that is as short as this
ALLOWED = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}  # in log-probability


def checked_length(window: int) -> int:
    """Return how many tokens are compared: past the window, where stateful types change."""
    return max(SHORT, window * 3 // 2) if window * 3 // 2 <= LONGEST else SHORT


@torch.inference_mode()
def cache_finding(model: Any, tokens: list[int]) -> Finding:
    """Compare the log-probabilities of a text read at once and read in parts."""
    given = torch.tensor([tokens], device=model.device)
    size = given.shape[1]
    whole = _probabilities(model(input_ids=given, use_cache=False).logits, given)
    parts, cache = [], DynamicCache(config=model.config)
    for start, stop in ((0, size // 2), *((at, at + 1) for at in range(size // 2, size))):
        part = model(input_ids=given[:, start:stop], past_key_values=cache, use_cache=True).logits
        parts.append(part)
    stepped = _probabilities(torch.cat(parts, 1), given)
    apart = (whole - stepped).abs()
    worst, allowed = float(apart.max()), ALLOWED.get(model.dtype, 0.5)
    first = f"{size} tokens, the second half one by one"
    if worst <= allowed:
        told = f"{first}, have the losses of one forward (largest difference {worst:.1g})"
        return Finding("cache", "passed", told)
    at = int((apart > allowed).nonzero()[0]) + 1
    told = (
        f"{first}, differ from one forward by up to {worst:.2g}, from token {at} on: keys that were"
        " cached are not those of the whole text"
    )
    return Finding("cache", "failed", told)


def _probabilities(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of every token but the first, float32."""
    found = logits[0, :-1].float().log_softmax(-1)
    return found.gather(1, tokens[0, 1:, None])[:, 0]
