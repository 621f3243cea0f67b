"""Methods that move positions, tiny models of every family, and what they say of a text."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from harness.patching.config import rope_of
from harness.patching.patch import patched
from scaling import (
    dual_chunk,
    dynamic_ntk,
    jet_long,
    leaky_rerope,
    lm_infinite,
    log_n,
    rerope,
    self_extend,
    string,
    yarn,
)
from scaling.types import Bands
from tests.families import TOKENS, build, tiny
from tests.tiny import WINDOW

LENGTH = 2 * WINDOW
TOKEN = TOKENS[:, :LENGTH]
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rerope": (rerope, {}),
    "leaky_rerope": (leaky_rerope, {}),
    "self_extend": (self_extend, {}),
    "dual_chunk": (dual_chunk, {}),
    "string": (string, {}),
    "jet_long": (jet_long, {}),
    "jet_long ramped": (jet_long, {"far": "ramped", "window": 9}),
    "lm_infinite": (lm_infinite, {}),
    "log_n on yarn": (log_n, {"on": partial(yarn.frequencies, factor=2)}),
    "per_query": (dynamic_ntk, {"mode": "per_query"}),
    "per_query exact": (dynamic_ntk, {"mode": "per_query", "block": 1}),
}


@cache
def model_of(family: str) -> Any:
    return build(tiny(family))


def bands_of(family: str, method: str = "self_extend", length: int = LENGTH) -> Bands:
    module, options = METHODS[method]
    found = module.bands(rope_of(model_of(family).config), length, **options)
    assert isinstance(found, Bands)
    return found


@torch.inference_mode()
def likelihoods(model: Any, tokens: torch.Tensor = TOKEN, **given: Any) -> torch.Tensor:
    """Return the log-likelihood of every next token, (length - 1,) float64."""
    logits = model(input_ids=tokens, **{"use_cache": False, **given}).logits[0, :-1]
    return logits.double().log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


def inside(model: Any, bands: Bands, tokens: torch.Tensor = TOKEN) -> torch.Tensor:
    with patched(model, bands):
        return likelihoods(model, tokens)
