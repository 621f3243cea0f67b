"""Examine a model: its config, its layers, its cache, and a server that runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, PreTrainedConfig

from ropewalk.harness.data.documents import open_documents
from ropewalk.harness.data.tokenize import opening_of, tokenize
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.models.files import reading
from ropewalk.harness.models.gguf import is_gguf
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.config import FULL, ORIGINAL, rope_of
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.harness.sweep.identity import COMPARED, Finding, identify
from ropewalk.harness.sweep.notes import notes
from ropewalk.harness.sweep.plan import open_model
from ropewalk.harness.sweep.server import Engine, ask_losses
from ropewalk.harness.sweep.spec import Spec

log = logging.getLogger("ropewalk")
LONGEST = 16_384  # tokens of the text
# Other names of rope_theta, and the scalings that need the window of pretraining.
BASES = ("rotary_emb_base", "rope_base", "theta", "rotary_base")
WINDOWED = ("llama3", "yarn", "longrope")
SHORT, STEPS = 48, 64  # tokens of the text where it passes no window; the last ones, one by one
PAST = 16  # tokens before and at least behind the end of a window, where stateful types change
BANDED = 1024  # tokens with moved positions, whose forward holds scores of all pairs
# Tokens x parameters that are read, twice: a minute or two on few cores, seconds on a GPU.
BUDGET, CPU_BUDGET = 1e14, 1e12
ALLOWED = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}  # nats of a loss


def examine(spec: Spec, server: Engine | None = None) -> Iterator[Finding]:
    """Yield the findings one by one; raise UserError for what cannot be examined.

    With the method ``native`` the cache is examined in the model as it is loaded. The losses of a
    server are compared with those of the method.
    """
    checkpoint, method = open_model(spec), load("method", spec.scaling[0])
    rope, label = checkpoint.rope, method.label
    if checkpoint.left_out:
        parts = ", ".join(checkpoint.left_out)
        yield Finding("config", "note", f"left out, beside the text model: {parts}")
    if rope.rotary_dim:
        yield from config_findings(checkpoint)
    trusted = checkpoint.trust_remote_code
    for note in notes(
        checkpoint.label, checkpoint.config, [method], rope, trust_remote_code=trusted
    ):
        yield Finding("layers", "note", note)
    (length,) = spec.lengths(rope.trained_length)
    rotation = resolve(method, rope, length)
    plain = resolve(load("method", "none"), rope, length).fingerprint
    if label not in ("native", "none") and rotation.fingerprint == plain:
        text = f"at {length:,} tokens {label} is the plain model; name a longer --length or factor="
        yield Finding("layers", "note", text)
    docs = next(iter(spec.docs.values())) if isinstance(spec.docs, dict) else spec.docs
    first = next(iter(open_documents(docs).read()))[1] or ""
    most = min(checkpoint.positions or LONGEST, LONGEST)
    tokens = [*tokenize(checkpoint.tokenizer, first)[0][:most]]
    if min(length, len(tokens)) < 2:
        raise UserError(
            "a cache has 2 tokens or more: --length is "
            f"{length:,}, and the first document of --docs has {len(tokens):,}."
        )
    log.info(f"Loading {checkpoint.parameter_count / 1e6:,.0f} million parameters.")
    model: Any = load_weights(checkpoint)
    budget = CPU_BUDGET if model.device.type == "cpu" else BUDGET
    longest = BANDED if rotation.moves_positions else LONGEST
    most = min(len(tokens), max(SHORT, min(longest, int(budget / model.num_parameters()))))
    most = most if label == "native" else min(most, length)  # bands reach no further
    windows = {w for w in (rope.trained_length, checkpoint.sliding_window) if w}
    passed = [window * 3 // 2 for window in windows if window + PAST <= most]
    read = tokens[: min(most, max([SHORT, *passed]))]
    with patched(model, rotation):  # which verifies itself
        yield Finding("layers", "passed", f"{label} is verified on the output of the model")
        if label != "native":
            yield cache_finding(model, read, windows)
    if label == "native":
        yield cache_finding(model, read, windows)
    if server is not None:
        opening = opening_of(checkpoint.tokenizer)
        read = [*opening, *tokens[: max(2, min(COMPARED, length - 1))]]
        asked = partial(ask_losses, server, checkpoint.tokenizer)
        served = resolve(method, rope, max(length, len(read)))
        yield identify(asked, model, rope, served, label, read)


def config_findings(checkpoint: Checkpoint) -> list[Finding]:
    """Return the faults of a config, or one finding that there are none.

    Those of a GGUF file are errors when it is opened.
    """
    text, faults, rope = checkpoint.config.get_text_config(), list[str](), checkpoint.rope
    if not is_gguf(checkpoint.name):
        with reading("config", checkpoint.name):
            raw = PreTrainedConfig.get_config_dict(checkpoint.name, revision=checkpoint.revision)[0]
            raw = raw.get("text_config", raw) if text is not checkpoint.config else raw
            faults = [*_faults(raw, text)]
    about = f"base {rope.base:g}, trained window {rope.trained_length:,} tokens"
    return [Finding("config", "failed", fault) for fault in faults] or [
        Finding("config", "passed", about)
    ]


def _faults(raw: Mapping[str, Any], text: Any) -> Iterator[str]:
    """Yield what is missing from config.json, contradictory, or read differently by engines."""
    old, new = (raw.get(name) or {} for name in ("rope_scaling", "rope_parameters"))
    scaling = old or new
    scaling = scaling.get(FULL, scaling)
    kind, base = scaling.get("rope_type", scaling.get("type", "default")), rope_of(text).base
    outer, inner = raw.get("rope_theta"), scaling.get("rope_theta")
    named = {name: raw[name] for name in BASES if name in raw}
    if outer is None and inner is None and base not in named.values():  # GPT-NeoX reads its own
        other = "".join(f", and {name} {value}, which is not read" for name, value in named.items())
        yield (
            f"config.json has no rope_theta{other}: transformers takes {base:g}, "
            f"its default for {text.model_type}, and other engines theirs; write rope_theta"
        )
    if kind in WINDOWED and not (scaling.get(ORIGINAL) or raw.get(ORIGINAL)):
        yield (
            f"its {kind} scaling has no {ORIGINAL}: transformers scales from "
            f"max_position_embeddings, {text.max_position_embeddings:,} tokens; write the window "
            "of pretraining"
        )
    if different := sorted(key for key in old.keys() & new.keys() if old[key] != new[key]):
        yield (
            f"rope_scaling and rope_parameters differ in {', '.join(different)}: transformers 5"
            " takes rope_scaling, other readers rope_parameters"
        )
    if None not in (outer, inner) and outer != inner:
        yield (
            f"rope_theta is {outer:g} in config.json and {inner:g} in its scaling: "
            "engines read one or the other"
        )
    if kind == "dynamic":
        yield (
            "dynamic scaling: the base follows the longest input so far, keys cached before keep "
            "an older one, and results depend on what ran before; export the base of one length "
            "(dynamic_ntk, mode=frozen)"
        )
    scale = scaling.get("attention_factor")
    if kind == "longrope" and scale is not None and not scaling.get("long_mscale"):
        yield (
            f"attention_factor {scale:g} of longrope is dropped by vLLM and SGLang, which read "
            "short_mscale and long_mscale; write it there too"
        )
    differ = scaling.get("short_factor") != scaling.get("long_factor")
    if kind == "longrope" and differ and not text.model_type.startswith("phi3"):
        yield (
            "longrope has two lists of factors: transformers chooses by the input, servers by the "
            "length that they allocate, and keys cached under the other list are stale; write one "
            "list twice"
        )


@torch.inference_mode()
def cache_finding(model: Any, tokens: list[int], windows: set[int]) -> Finding:
    """Compare the losses of a text read at once and read in parts.

    One part ends shortly before a window does, where a stateful type begins anew, and the last ones
    are single tokens.
    """
    text, size = torch.tensor([tokens], device=model.device), len(tokens)
    steps = min(size // 2, STEPS)

    def losses(logits: torch.Tensor) -> torch.Tensor:
        return cross_entropy(logits[0, :-1].float(), text[0, -steps:], reduction="none")

    whole = losses(model(input_ids=text, use_cache=False, logits_to_keep=steps + 1).logits)
    if not bool(whole.isfinite().all()):
        said = f"the model's predictions of {size:,} tokens are not numbers"
        return Finding("cache", "failed", f"{said}: its weights are damaged")
    single = range(size - steps, size + 1)
    ends = sorted({max(1, w - PAST) for w in windows if w < single[0]} | {*single})
    logits, cache = [], DynamicCache(config=model.config)
    for start, stop in pairwise([0, *ends]):
        part = text[:, start:stop]
        out = model(input_ids=part, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits.append(out.logits)
    difference = (whole - losses(torch.cat(logits[-steps - 1 :], 1))).abs()
    worst, allowed = float(difference.max()), ALLOWED.get(model.dtype, 0.5)
    read = f"{size:,} tokens, the last {steps} one by one"
    if not worst <= allowed:
        at = size - steps + int((~(difference <= allowed)).nonzero()[0])
        said = (
            f"{read}, differ from one forward by up to {worst:.2g} (at most {allowed:g} is "
            f"allowed), from token {at} on: keys that were cached are not those of the whole text"
        )
        return Finding("cache", "failed", said)
    said = (
        f"{read}, have the losses of one forward (largest difference {worst:.1g}; at most "
        f"{allowed:g} is allowed in {str(model.dtype).removeprefix('torch.')})"
    )
    if left := [f"{window:,}" for window in sorted(windows) if window >= size]:
        said += f"; nothing was compared past the window of {' and '.join(left)} tokens"
    return Finding("cache", "passed", said)
