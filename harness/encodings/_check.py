"""Check an encoding in a small model of random weights, and describe what it does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers.utils import logging

from harness.encodings._config import EncodingConfig, config_of
from harness.encodings._model import EncodingForCausalLM
from harness.errors import UserError
from harness.methods.findings import Finding
from harness.plugins import call

FIELDS = {
    "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 64, "vocab_size": 101, "initializer_range": 0.5,
}  # fmt: skip
PARTS = ("inputs", "turn", "scores", "values", "attend")
CUTS = (20, 21, 40)  # where a text is cut, to be read by a cache
TOLERANCE = 1e-3  # of logits whose spread is about 1


@torch.inference_mode()
def check(encoding: str) -> tuple[Finding, ...]:
    """Build a model with an encoding; return what holds and what does not, in words."""
    logging.disable_progress_bar()
    try:
        return tuple(_findings(encoding))
    except UserError as error:
        return (Finding("runs", "failed", str(error)),)


def _findings(encoding: str) -> Iterator[Finding]:
    what, config = f"encoding {encoding}", config_of(encoding, **FIELDS)
    model, window = call(what, lambda: _model(config)), config.max_position_embeddings
    tokens = torch.arange(2 * window)[None] ** 2 % config.vocab_size
    inside = tokens[:, :window]
    whole = call(what, lambda: _logits(model, inside))
    added = sum(parameter.numel() for parameter in model.model.encoding.parameters())
    finite = bool(torch.isfinite(whole).all())
    yield _found("runs", finite, f"finite logits; it adds {added:,} parameters here", "not finite")
    if not finite:
        return
    yield _parts(model.model.encoding)
    tests: dict[str, Callable[[], Finding]] = {
        "causal": lambda: _causal(model, inside, whole),
        "cache": lambda: _cache(model, inside, whole),
        "saved": lambda: _saved(model, inside, whole),
        "order": lambda: _order(model, inside),
        "beyond": lambda: _beyond(model, tokens),
    }
    for about, test in tests.items():
        try:
            yield call(what, test)
        except UserError as error:
            yield Finding(about, "failed", str(error))


def _parts(encoding: Any) -> Finding:
    """Say which methods of the contract the model calls, and which it never does."""
    has = [part for part in PARTS if hasattr(encoding, part)]
    if "attend" in has and {"scores", "values"} & set(has):
        text = "attend replaces softmax attention: scores and values are never called"
        return Finding("parts", "failed", text)
    if hasattr(encoding, "base") and "turn" not in has:
        text = "base gives a rotary embedding that nothing turns by: there is no turn"
        return Finding("parts", "failed", text)
    told = ", ".join(has) or "none of " + ", ".join(PARTS)
    own = "; its scale replaces 1/sqrt(head_dim)" if hasattr(encoding, "scale") else ""
    return Finding("parts", "note", f"it has {told}{own}")


def _model(config: EncodingConfig) -> Any:
    """Return the model, random in the encoding's parameters too."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = EncodingForCausalLM(config).eval()
        for parameter in model.model.encoding.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def _logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return found


def _causal(model: Any, tokens: torch.Tensor, whole: torch.Tensor) -> Finding:
    """Say whether other tokens from 40 on change the logits before them."""
    changed = torch.cat((tokens[:, :40], tokens[:, 40:] + 1), 1) % model.config.vocab_size
    found = _logits(model, changed)[:, :40]
    return _near("causal", found, whole[:, :40], "no token sees a later one")


def _cache(model: Any, tokens: torch.Tensor, whole: torch.Tensor) -> Finding:
    """Say whether a text that is read in parts, one a single token, has the same logits."""
    cache, parts = None, []
    for part in tokens.tensor_split(CUTS, 1):
        out = model(input_ids=part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    found = torch.cat(parts, 1)
    return _near("cache", found, whole, "read in parts it gives the same logits")


def _saved(model: Any, tokens: torch.Tensor, whole: torch.Tensor) -> Finding:
    """Say whether a model that is saved and read gives the same bits."""
    kept = False
    with TemporaryDirectory() as folder, suppress(RuntimeError):  # of a tensor without values
        model.save_pretrained(folder)
        config = copy.deepcopy(model.config)
        again = EncodingForCausalLM.from_pretrained(folder, config=config).eval()
        kept = bool(torch.equal(_logits(again, tokens), whole))
    right = "read from its file it gives the same bits"
    return _found("saved", kept, right, "a tensor is not saved")


def _order(model: Any, tokens: torch.Tensor) -> Finding:
    """Say whether the last token's logits depend on the order of those before it in one layer."""
    layers, kept = model.model.layers, model.model.layers[:1]
    model.model.layers = kept
    plain = _logits(model, tokens)[:, -1]
    turned = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), 1)
    apart = float((_logits(model, turned)[:, -1] - plain).abs().max())
    model.model.layers = layers
    text = "tells the order of tokens" if apart > TOLERANCE else "does not tell the order of tokens"
    return Finding("order", "note", f"one layer {text}")


def _beyond(model: Any, tokens: torch.Tensor) -> Finding:
    """Say whether the model reads past its window; an encoding may refuse by any error."""
    try:
        call("it", lambda: _logits(model, tokens))
    except UserError as error:
        table = isinstance(error.__cause__, IndexError)
        why = "" if table else f": {str(error).removeprefix('it: ').removeprefix('it failed: ')}"
        text = f"no text longer than the trained window is read{why}"
        return Finding("beyond", "note", text)
    return Finding("beyond", "note", "a text of two windows is read")


def _near(about: str, found: torch.Tensor, wanted: torch.Tensor, right: str) -> Finding:
    error = float((found - wanted).abs().max())
    return _found(about, error < TOLERANCE, right, f"logits differ by {error:.2g}")


def _found(about: str, holds: bool, right: str, wrong: str) -> Finding:
    return Finding(about, "passed" if holds else "failed", right if holds else wrong)
