"""Examine a model: its config, its layers, its cache, and a server that runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from transformers import DynamicCache

from ropewalk.harness.data.documents import open_documents
from ropewalk.harness.data.tokenize import tokenize
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.models.config import read_raw
from ropewalk.harness.models.files import reading
from ropewalk.harness.models.gguf import is_gguf
from ropewalk.harness.models.structure import Layers, layers_of
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import Plugin, load
from ropewalk.harness.serve._parameters import full_attention
from ropewalk.harness.sweep.identity import COMPARED, identify
from ropewalk.harness.sweep.plan import check_rotary, open_model
from ropewalk.harness.sweep.server import Engine, ask_losses
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling import native
from ropewalk.scaling.types import Rotation

log = logging.getLogger("ropewalk")
LONGEST = 16_384  # tokens of the text
QUICK = 64  # tokens that are read at all
# Other names of rope_theta, and the scalings that need the window of pretraining.
BASES = ("rotary_emb_base", "rope_base", "theta", "rotary_base")
WINDOWED = ("llama3", "yarn", "longrope")
WINDOW = "original_max_position_embeddings"
SHORT, STEPS = 48, 64  # tokens of the text where it passes no window; the last ones, one by one
PAST = 16  # tokens before and at least behind the end of a window, where stateful types change
BANDED = 1024  # tokens with moved positions, whose forward holds scores of all pairs
# Tokens x parameters that are read, twice: a minute or two on few cores, seconds on a GPU.
BUDGET, CPU_BUDGET = 1e14, 1e12
ALLOWED = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}  # in log-probability
DUAL_CHUNK_UNREAD = (
    f"{native.DUAL_CHUNK} is read by neither transformers nor a current server. Its rotary class is"
    " still in vLLM 0.33 and SGLang 0.5.23, but not the attention that it needs. Use --scaling"
    " native to measure it, and ropewalk export --to hf-code to write it as a modelling file"
)


@dataclass(frozen=True)
class Finding:
    """One line of a result. A ``note`` is information: many good methods differ in it."""

    about: str
    verdict: Literal["passed", "failed", "note"]
    text: str


def examine(spec: Spec, server: Engine | None = None, *, quick: bool = False) -> Iterator[Finding]:
    """Yield the findings one by one; raise UserError for what cannot be examined.

    With the method ``native`` the model is examined as it is loaded. The losses of a server are
    compared with those of the method. ``quick`` reads short texts alone.
    """
    checkpoint, method = open_model(spec), load("method", spec.scaling[0])
    check_rotary(checkpoint, [method])
    config, trusted, rope = checkpoint.config, checkpoint.trust_remote_code, checkpoint.rope
    if checkpoint.left_out:
        parts = ", ".join(checkpoint.left_out)
        yield Finding("config", "note", f"left out, beside the text model: {parts}")
    layers = None
    if not rope.rotary_dim:
        text = f"{config.model_type} has no rotary embedding: no scaling acts on it"
        yield Finding("layers", "note", text)
    else:
        with reading("config", checkpoint.name):
            findings = config_findings(checkpoint.name, checkpoint.revision, config, trusted)
            layers = layers_of(config, trust_remote_code=trusted)
        yield from findings
    (length,) = spec.lengths(rope.trained_length)
    rotation = resolve(method, rope, length)
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
    if layers is not None:
        yield from _layer_findings(model, checkpoint, layers, method, rotation, length)
    shipped = method.label == "native"
    with nullcontext() if shipped else patched(model, rotation):
        windows = {"the trained window": rope.trained_length}
        if checkpoint.sliding_window:
            windows["the sliding window"] = checkpoint.sliding_window
        most = QUICK
        if not quick:
            budget = CPU_BUDGET if model.device.type == "cpu" else BUDGET
            longest = BANDED if rotation.moves_positions else LONGEST
            most = max(SHORT, min(longest, int(budget / model.num_parameters())))
        limits = {
            f"here no more than {most:,} are read": most,
            f"the first document of --docs has {len(tokens):,}": len(tokens),
        } | ({} if shipped else {f"--length is {length:,}": length})  # bands reach no further
        limit = min(limits, key=limits.__getitem__)
        most = limits[limit]
        passed = [window for window in windows.values() if window + PAST <= most]
        read = tokens[: min(most, max(SHORT, max(passed, default=0) * 3 // 2))]
        yield cache_finding(model, read, windows, limit)
    if server is not None:
        size = max(2, min(QUICK if quick else COMPARED, length - 1))
        bos = checkpoint.tokenizer.bos_token_id
        read = [*([] if bos is None else [bos]), *tokens[:size]]
        asked = partial(ask_losses, server, checkpoint.tokenizer)
        served = resolve(method, rope, max(length, len(read)))
        identity = identify(asked, model, rope, served, method.label, read)
        yield Finding("server", identity.verdict, identity.text)


def config_findings(where: str, commit: str | None, config: Any, trusted: bool) -> list[Finding]:
    """Return the faults of a config, or one finding that there are none."""
    text = config.get_text_config()
    raw = config.to_dict() if is_gguf(where) else read_raw(where, commit)
    raw = raw.get("text_config", raw) if text is not config else raw
    given = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    scaling = dict(full_attention(given) or {}) if isinstance(given, dict) else {}
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if faults := [*_faults(raw, scaling, kind, text)]:
        return [Finding("config", "failed", fault) for fault in faults]
    rope = rope_of(config)
    ships = rope.shipped.get("rope_type", "default")
    read = "ships no scaling" if ships == "default" else f"ships {ships}"
    about = f"base {rope.base:g}, trained window {rope.trained_length:,} tokens"
    findings = [Finding("config", "passed", f"{about}; {read}")]
    if native.DUAL_CHUNK in rope.shipped:
        findings.append(Finding("config", "note", DUAL_CHUNK_UNREAD))
    return findings


def _faults(
    raw: Mapping[str, Any], scaling: Mapping[str, Any], kind: str, text: Any
) -> Iterator[str]:
    """Yield what is missing from config.json, contradictory, or read differently by engines."""

    def is_base(name: str) -> bool:
        """Return whether the library takes the base from this key, as GPT-NeoX's class does."""
        changed = type(text).from_dict({**deepcopy(dict(raw)), name: 2 * raw[name]})
        return bool(rope_of(changed).base != rope_of(text).base)

    outer, inner = raw.get("rope_theta"), scaling.get("rope_theta")
    if "rope_theta" not in raw and "rope_theta" not in scaling:
        named = [name for name in BASES if isinstance(raw.get(name), int | float)]
        if not any(map(is_base, named)):
            other = f", and {named[0]} {raw[named[0]]}, which is not read" if named else ""
            yield (
                f"config.json has no rope_theta{other}: transformers takes {rope_of(text).base:g}, "
                f"its default for {text.model_type}, and other engines theirs; write rope_theta"
            )
    if kind in WINDOWED and not (scaling.get(WINDOW) or raw.get(WINDOW)):
        yield (
            f"its {kind} scaling has no {WINDOW}: transformers scales from "
            f"max_position_embeddings, {text.max_position_embeddings:,} tokens; write the window "
            "of pretraining"
        )
    old, new = raw.get("rope_scaling"), raw.get("rope_parameters")
    if isinstance(old, dict) and isinstance(new, dict):
        different = sorted(key for key in old.keys() & new.keys() if old[key] != new[key])
        if different:
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


def _layer_findings(
    model: Any, checkpoint: Checkpoint, layers: Layers, method: Plugin, rotation: Rotation,
    length: int,
) -> Iterator[Finding]:  # fmt: skip
    """Yield which layers a method changes, once the patch is verified on the model's output."""
    rope, label = checkpoint.rope, method.label
    plain = rotation.fingerprint == resolve(load("method", "none"), rope, length).fingerprint
    scales = native.ships(rope) if label == "native" else not plain
    if plain and label not in ("native", "none"):
        text, other = f"at {length:,} tokens {label} is the plain model", []
        if length <= rope.trained_length:
            other.append("a longer --length")
        if "factor" in method.options:
            text += ": its factor is 1 there"
            other.append("another factor=")
        yield Finding("layers", "note", text + (f"; name {' or '.join(other)}" if other else ""))
    try:
        with patched(model, rotation):
            pass  # the patch verifies itself
    except UserError as error:
        yield Finding("layers", "failed", f"{label} does not act: {error}")
        return
    rotated = layers.rotated
    if scales and not rotated["full"] and layers.plain["full"]:
        text = (
            "no layer that sees the whole context has a rotary embedding: a scaling changes sliding"
            " layers alone, which see no distance beyond their window"
        )
        yield Finding("layers", "failed", text)
        return
    acts = rotated["full"] if layers.own_sliding else rotated.total()
    total = rotated.total() + layers.plain.total()
    verified = "the patch is verified on the output"
    if rotation.stateful:
        verified = "the model's own class computes it"
    what = f"{label} acts" if scales else "a scaling would act"
    yield Finding("layers", "passed", f"{what} on {acts} of {total} attention layers; {verified}")


@torch.inference_mode()
def cache_finding(model: Any, tokens: list[int], windows: Mapping[str, int], limit: str) -> Finding:
    """Compare the log-probabilities of a text read at once and read in parts.

    One part ends shortly before a window does, where a stateful type begins anew, and the last ones
    are single tokens. ``windows`` are tokens, by what the window is called in a sentence; ``limit``
    says why the text is no longer, for a window that it does not pass.
    """
    given, size = torch.tensor([tokens], device=model.device), len(tokens)
    steps = min(size // 2, STEPS)
    single = range(size - steps, size + 1)
    ends = sorted({max(1, w - PAST) for w in windows.values() if w < single[0]} | {*single})
    logits = model(input_ids=given, use_cache=False, logits_to_keep=steps + 1).logits
    whole = _log_probabilities(logits, given)
    parts, cache = [], DynamicCache(config=model.config)
    for start, stop in pairwise([0, *ends]):
        part = given[:, start:stop]
        out = model(input_ids=part, past_key_values=cache, use_cache=True, logits_to_keep=1)
        parts.append(out.logits)
    if not bool(torch.isfinite(whole).all()):
        text = f"the model's predictions of {size:,} tokens are not numbers"
        return Finding("cache", "failed", f"{text}: its weights are damaged")
    difference = (whole - _log_probabilities(torch.cat(parts[-steps - 1 :], 1), given)).abs()
    worst, allowed = float(difference.max()), ALLOWED.get(model.dtype, 0.5)
    read = f"{size:,} tokens, the last {steps} one by one"
    if worst <= allowed:
        text = (
            f"{read}, have the losses of one forward (largest difference {worst:.1g}; at most "
            f"{allowed:g} is allowed in {str(model.dtype).removeprefix('torch.')})"
        )
        left = [
            f"{name} of {window:,} tokens" for name, window in windows.items() if window >= size
        ]
        if left:
            text += f"; past {' and '.join(left)} nothing was compared: {limit}"
        return Finding("cache", "passed", text)
    at = size - steps + int((~(difference <= allowed)).nonzero()[0])
    text = (
        f"{read}, differ from one forward by up to {worst:.2g} (at most {allowed:g} is allowed), "
        f"from token {at} on: keys that were cached are not those of the whole text"
    )
    return Finding("cache", "failed", text)


def _log_probabilities(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of the last tokens, one fewer than there are logits, float32."""
    logs = logits[0, :-1].float().log_softmax(-1)
    return logs.gather(1, tokens[0, -len(logs) :, None])[:, 0]
