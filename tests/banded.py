"""Methods that move positions, tiny models of every family, and what they say of a text."""

import json
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.patch import patched
from ropewalk.scaling import (
    dpe,
    dual_chunk,
    dynamic_ntk,
    gali,
    info_scale,
    jet_long,
    lampe,
    leaky_rerope,
    lm_infinite,
    log_n,
    mesa,
    ms_poe,
    rerope,
    self_extend,
    self_logistic,
    string,
    yarn,
)
from ropewalk.scaling.types import Bands, Rope
from tests.families import TOKENS, build, tiny
from tests.tiny import WINDOW

LENGTH = 2 * WINDOW
TOKEN = TOKENS[:, :LENGTH]
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rerope": (rerope, {}), "leaky_rerope": (leaky_rerope, {}), "self_extend": (self_extend, {}),
    "dual_chunk": (dual_chunk, {}), "string": (string, {}), "jet_long": (jet_long, {}),
    "jet_long ramped": (jet_long, {"far": "ramped", "window": 9}), "lm_infinite": (lm_infinite, {}),
    "log_n on yarn": (log_n, {"on": partial(yarn.frequencies, factor=2)}),
    "qwen dual_chunk": (dual_chunk, {"form": "qwen"}), "lampe": (lampe, {}), "mesa": (mesa, {}),
    "self_logistic": (self_logistic, {"rate": 0.3}),
    "info_scale on yarn": (info_scale, {"on": partial(yarn.frequencies, factor=2)}),
    "gali": (gali, {"chunk": 20}), "dpe": (dpe, {"window": 9, "g1": 2, "g4": 3, "g8": 1}),
    "dpe top": (dpe, {"window": 9, "g1": 2, "g4": 3, "g8": 1, "top": 3, "heads": True}),
    "ms_poe": (ms_poe, {"first_layer": 1, "heads": True}),
    "per_query": (dynamic_ntk, {"mode": "per_query"}),
    "per_query exact": (dynamic_ntk, {"mode": "per_query", "block": 1}),
}  # fmt: skip


@cache
def model_of(family: str) -> Any:
    return build(tiny(family))


@cache
def heads_of(layers: int, heads: int, pairs: int) -> str:
    """Write tables of heads, at random, as ``ropewalk calibrate`` writes them; return the path."""
    draw = torch.Generator().manual_seed(7)
    tables = {
        "outlier_shares": torch.rand(layers, heads, generator=draw).tolist(),
        "pair_norms": torch.rand(layers, heads, pairs, generator=draw).tolist(),
    }
    path = Path(mkdtemp()) / "heads.json"
    path.write_text(json.dumps(tables), encoding="utf-8")
    return str(path)


def options_of(rope: Rope, method: str) -> dict[str, Any]:
    options = METHODS[method][1]
    if "heads" not in options:
        return options
    return {**options, "heads": heads_of(rope.layers, rope.heads, rope.rotary_dim // 2)}


def bands_of(family: str, method: str = "self_extend", length: int = LENGTH) -> Bands:
    rope = rope_of(model_of(family).config)
    found = METHODS[method][0].bands(rope, length, **options_of(rope, method))
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
