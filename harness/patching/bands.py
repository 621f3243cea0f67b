"""Run a model with moved relative positions, band by band, once its attention is verified."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.harness.engine import language_model
from ropewalk.harness.engine.packed_attention import PLAIN
from ropewalk.harness.engine.structure import attending
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.banded_attention import BandedAttention
from ropewalk.harness.patching.frequencies import (
    as_is,
    check_angles,
    once,
    placed,
    probe,
    rotary_name,
)
from ropewalk.harness.patching.layout import NAME, Attention, Layout, layouts_of, no_mask, runs
from ropewalk.scaling.types import Bands, Frequencies, by_distance

CHECKED = 24  # tokens of the prompt
EXACT = 1e-4  # of the largest number: the rounding of float32
ROUNDED = {torch.float16: 1e-2, torch.bfloat16: 5e-2}  # the rounding of 16 bits
CUTS = ((0, 5, 70), (5, 11, 0), (11, None, 9))  # three bands: from, to, moved by, all in tokens


@contextmanager
def banded(model: Any, bands: Bands) -> Iterator[None]:
    """Run a loaded causal language model with these bands; restore it bit for bit on exit.

    A band is a set of query-key pairs with the positions they are rotated to. The rotary module
    does not rotate, so keys are cached unrotated; the attention rotates them. Layers without a
    rotary embedding, and the sliding layers of a model with a rotary embedding per layer type, are
    not changed. Once per model, its own frequencies in bands are compared with its own attention,
    layer by layer on a short prompt. Raises UserError, naming the model, if they differ.
    """
    name = rotary_name(model)
    own = as_is(model.get_submodule(name)).inv_freq
    if any(len(part.inv_freq) != len(own) for part in bands.frequency_sets()):
        raise UserError(
            f"{type(model).__name__} rotates {len(own)} channel pairs, the bands another number."
        )
    if bands.by_head:
        config = model.config.get_text_config()
        shape = (config.num_hidden_layers, config.num_attention_heads)
        columns = (b.column for b in bands.bands if b.column is not None and b.by_head)
        if {tuple(column.shape[:2]) for column in columns} != {shape}:
            raise UserError(
                f"{type(model).__name__} has {shape[0]} layers of {shape[1]} heads, the bands"
                " another number."
            )
    layouts = verified_layouts(model, name)
    at_rest = Frequencies(torch.zeros_like(own))
    plain = language_model(model).config._attn_implementation == PLAIN
    attention = BandedAttention(bands, layouts, plain=plain)
    with placed(model, name, at_rest), attending(model, NAME, attention, attention.mask):
        check_angles(model, name, at_rest)
        yield


@contextmanager
def unrotated(model: Any, bands: Bands) -> Iterator[None]:
    """Run a model without a rotary embedding with the query scale of these bands.

    Its attention in bands is compared with its own on a short prompt. Raises UserError, naming the
    model, where they differ or its attention cannot be replaced.
    """
    kind, layouts = type(model).__name__, defaultdict[nn.Module, Layout | None](lambda: None)
    before, own = probe(model, CHECKED), bands.last
    whole = Bands(before.shape[1], (by_distance(before.shape[1], own, 0),))
    outputs = []
    for scale in (1.0, 2.0):
        tried = whole.scaled(torch.full((whole.length,), scale, dtype=torch.float64))
        attention = BandedAttention(tried, layouts)
        with runs(kind), attending(model, NAME, attention, attention.mask):
            outputs.append(probe(model, CHECKED))
    _check_close(kind, "logits", outputs[0], before, ROUNDED.get(before.dtype, EXACT))
    if torch.equal(*outputs):
        raise UserError(
            f"{kind} does not let its attention be replaced; queries cannot be scaled in it."
        )
    attention = BandedAttention(bands, layouts)
    with attending(model, NAME, attention, attention.mask):
        yield


def verified_layouts(model: Any, name: str) -> dict[nn.Module, Layout | None]:
    """Return each layer's layout, once its bands are verified; ``name`` is the rotary module's."""
    return once(model, "bands", lambda: _verified(model, name))


@dataclass(frozen=True)
class Call:
    """The output of one call of a layer's attention, and its inputs in float32 or wider.

    Then rounding cannot hide an error.
    """

    module: nn.Module
    states: tuple[Tensor, ...]  # query, key and value, (1, heads, tokens, width)
    mask: Tensor | None
    options: dict[str, Any]
    out: Tensor


@torch.inference_mode()
def _verified(model: Any, name: str) -> dict[nn.Module, Layout | None]:
    """Return each layer's layout; compare its bands with the model's own attention.

    The model runs a prompt unchanged, then without rotation and with the attention outputs of the
    first run in every layer. The layers then have the same hidden states, in any dtype, and only
    queries and keys differ. Rotated by the layout, they must equal those of the first run. In
    float32, three bands at the true relative positions must also equal the model's own attention
    function, windows, soft-capping and sinks included. Raises UserError naming the model.
    """
    layouts = layouts_of(model)
    kind, own = type(model).__name__, as_is(model.get_submodule(name))
    before, size = probe(model, CHECKED), min(CHECKED, model.config.get_text_config().vocab_size)
    with runs(kind):
        calls, logits = _recorded(model)
        with placed(model, name, Frequencies(torch.zeros_like(own.inv_freq))):
            unrotated, replayed = _recorded(model, calls)
    for output in (logits, replayed):
        _check_close(kind, "logits", output, before, ROUNDED.get(before.dtype, EXACT))
    usual = language_model(model).config._attn_implementation
    bands, moved = (_bands(size, own, by) for by in (0, 3))
    effect = False
    for call, at_rest in zip(calls, unrotated, strict=True):
        layout = layouts[call.module]
        rotated = _rotated(kind, call, at_rest, layout, own)
        expected = _reference(rotated, usual)
        outputs = [
            BandedAttention(cut, {call.module: layout})(
                call.module, *at_rest.states, **rotated.options
            )[0]
            for cut in (bands, moved)
        ]
        error = _check_close(kind, "attention", outputs[0], expected, EXACT)
        effect |= float((outputs[1] - expected).abs().max()) > error
    if not effect:
        raise UserError(f"{kind}: its output does not depend on relative positions; not supported.")
    return layouts


def _recorded(model: Any, replayed: list[Call] | None = None) -> tuple[list[Call], Tensor]:
    """Run the prompt; return every call of an attention, and the logits.

    The model uses its own attention and masks, or ``replayed`` outputs in their place.
    """
    from transformers import AttentionMaskInterface  # with the model's code

    usual, calls = language_model(model).config._attn_implementation, list[Call]()

    def attend(
        module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        if replayed is None:
            out = _function(module, usual)(module, query, key, value, attention_mask, **options)[0]
        else:
            out = replayed[len(calls)].out
        states = _wide(query), _wide(key), _wide(value)
        wide = {name: _wide(value) for name, value in options.items()}
        calls.append(Call(module, states, _wide(attention_mask), wide, out))
        return out, None

    with attending(model, NAME, attend, AttentionMaskInterface().get(usual, no_mask)):
        logits = probe(model, CHECKED)
    return calls, logits


def _rotated(kind: str, call: Call, at_rest: Call, layout: Layout | None, own: Frequencies) -> Call:
    """Return a call with queries and keys rotated by the layout; raise where they differ."""
    query, key, value = at_rest.states
    if layout is not None:
        positions = torch.arange(query.shape[2], dtype=torch.float64)
        tables = layout.tables(positions, own, query.device)
        query, key = layout.rotate(query, *tables), layout.rotate(key, *tables)
    allowed = ROUNDED.get(call.out.dtype, EXACT)
    for what, actual, expected in zip(("queries", "keys"), (query, key), call.states, strict=False):
        _check_close(kind, what, actual, expected, allowed)
    return replace(call, states=(query, key, value))


def _check_close(kind: str, what: str, actual: Tensor, expected: Tensor, share: float) -> float:
    """Return the largest error; raise UserError where it exceeds a share of the largest number.

    In 16 bits the mean error counts: rounding may send a token to another expert of a mixture.
    """
    difference = (actual - expected).abs()
    error = float(difference.max() if share == EXACT else difference.mean())
    allowed = share * float(expected.abs().max() if share == EXACT else expected.float().std())
    if not error <= allowed:
        raise UserError(
            f"{kind}: its own rotary embedding, cut into bands, changes its {what} by {error:.2g}"
            f" (allowed: {allowed:.2g}); positions cannot be moved in it."
        )
    return error


def _bands(size: int, own: Frequencies, by: int) -> Bands:
    """Return three bands at the true relative positions, or with all but the nearest moved."""
    here = torch.arange(size)
    return Bands(
        size,
        tuple(
            by_distance(size, own, near, far, query=here + at + by * (near > 0), key=here + at)
            for near, far, at in CUTS
        ),
    )


def _function(module: nn.Module, implementation: str) -> Attention:
    """Return the attention function a layer calls: registered, or its file's own eager one."""
    home = sys.modules[type(module).__module__]
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # with the model's code

    function: Attention = ALL_ATTENTION_FUNCTIONS.get_interface(
        implementation, getattr(home, "eager_attention_forward", None)
    )
    return function


def _reference(call: Call, implementation: str) -> Tensor:
    """Return the output of the model's own attention function in float32.

    The eager function replaces flash kernels, which take 16 bits and no mask.
    """
    mask, size = call.mask, call.states[0].shape[2]
    if implementation not in ("sdpa", "eager"):
        implementation, behind = "eager", torch.arange(size)[:, None] - torch.arange(size)
        hidden = (behind < 0) | (behind >= (call.options.get("sliding_window") or size))
        mask = torch.zeros(size, size).masked_fill(hidden, -1e30).to(call.states[0])
    function = _function(call.module, implementation)
    return function(call.module, *call.states, mask, **call.options)[0]


def _wide(value: Any) -> Any:
    """Return a tensor of 16 bits in float32, and anything else unchanged."""
    half = isinstance(value, Tensor) and value.dtype in ROUNDED
    return value.float() if half else value
