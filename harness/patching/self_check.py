"""Prove, before anything is measured, that an attention in bands equals the model's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.errors import UserError
from harness.patching.banded_attention import BandedAttention
from harness.patching.channel_layout import Attention, Layout, attending, no_mask, runs
from harness.patching.frequencies import as_is, placed, probe
from scaling.types import Bands, Frequencies, by_distance

CHECKED = 24  # tokens of the prompt
EXACT = 1e-4  # of the largest number: the rounding of float32
ROUNDED = {torch.float16: 1e-2, torch.bfloat16: 5e-2}  # the rounding of 16 bits
CUTS = ((0, 5, 70), (5, 11, 0), (11, None, 9))  # three bands: from, to, moved by, all in tokens
Layouts = Mapping[nn.Module, Layout | None]


@dataclass(frozen=True)
class Call:
    """The inputs and the output of one call of a layer's attention."""

    module: nn.Module
    given: tuple[torch.Tensor, ...]  # query, key and value, (1, heads, tokens, width)
    mask: torch.Tensor | None
    options: dict[str, Any]
    out: torch.Tensor

    def wide(self) -> Call:
        """Return the call in float32 or wider: then rounding cannot hide an error."""
        options = {name: _wide(value) for name, value in self.options.items()}
        given = tuple(_wide(x) for x in self.given)
        return Call(self.module, given, _wide(self.mask), options, self.out)


@torch.inference_mode()
def prove(model: Any, name: str, found: Layouts) -> None:
    """Compare each layer's bands with the model's own attention, on the same inputs.

    The model runs a prompt unchanged, then without rotation and with the attention outputs of the
    first run in every layer: so the layers have the same hidden states, in any dtype, and only
    queries and keys differ. Rotated by the layout they must equal those of the first run; and in
    float32 three bands at the true relative positions must equal the model's own attention
    function, windows, soft-capping and sinks included. Raises UserError naming the model.
    """
    kind, own = type(model).__name__, as_is(model.get_submodule(name))
    before, size = probe(model, CHECKED), min(CHECKED, model.config.get_text_config().vocab_size)
    with runs(kind):
        calls, logits = _recorded(model)
        with placed(model, name, Frequencies(torch.zeros_like(own.inv_freq))):
            rest, again = _recorded(model, calls)
    for one in (logits, again):
        _within(kind, "logits", one, before, ROUNDED.get(before.dtype, EXACT))
    usual = model.config._attn_implementation
    bands, moved = (_bands(size, own, by) for by in (0, 3))
    effect = False
    for call, at_rest in zip(calls, rest, strict=True):
        layout = found[call.module]
        turned = _turned(kind, call, at_rest, layout, own)
        wanted = _reference(turned, usual)
        outputs = [
            BandedAttention(one, {call.module: layout})(
                call.module, *at_rest.wide().given, **turned.options
            )[0]
            for one in (bands, moved)
        ]
        error = _within(kind, "attention", outputs[0], wanted, EXACT)
        effect |= float((outputs[1] - wanted).abs().max()) > error
    if not effect:
        raise UserError(f"{kind}: its output does not depend on relative positions; not supported.")


def _recorded(model: Any, replayed: list[Call] | None = None) -> tuple[list[Call], torch.Tensor]:
    """Run the prompt; return every call of an attention, and the logits.

    It uses its own attention and masks, or the outputs of earlier calls in their place.
    """
    usual, calls = model.config._attn_implementation, list[Call]()

    def attend(
        module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
    ) -> tuple[torch.Tensor, None]:
        if replayed is None:
            out = _function(module, usual)(module, query, key, value, attention_mask, **options)[0]
        else:
            out = replayed[len(calls)].out
        calls.append(Call(module, (query, key, value), attention_mask, options, out))
        return out, None

    with attending(model, attend, AttentionMaskInterface().get(usual, no_mask)):
        logits = probe(model, CHECKED)
    return calls, logits


def _turned(kind: str, call: Call, at_rest: Call, layout: Layout | None, own: Frequencies) -> Call:
    """Return a call with queries and keys rotated by the layout; raise where they differ."""
    query, key, value = at_rest.wide().given
    if layout is not None:
        positions = torch.arange(query.shape[2], dtype=torch.float64)
        tables = layout.tables(positions, own, query.device)
        query, key = layout.rotate(query, *tables), layout.rotate(key, *tables)
    allowed = ROUNDED.get(call.given[0].dtype, EXACT)
    for what, found, wanted in zip(("queries", "keys"), (query, key), call.given, strict=False):
        _within(kind, what, found, wanted.to(found.dtype), allowed)
    wide = call.wide()
    return Call(call.module, (query, key, value), wide.mask, wide.options, call.out)


def _within(kind: str, what: str, found: torch.Tensor, wanted: torch.Tensor, share: float) -> float:
    """Return the error of numbers; raise UserError beyond a share of the largest.

    In 16 bits the mean counts: in a mixture, rounding may send a token to another expert.
    """
    apart = (found - wanted).abs()
    error = float(apart.max() if share == EXACT else apart.mean())
    allowed = share * float(wanted.abs().max() if share == EXACT else wanted.float().std())
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
    found: Attention = ALL_ATTENTION_FUNCTIONS.get_interface(
        implementation, getattr(home, "eager_attention_forward", None)
    )
    return found


def _reference(call: Call, implementation: str) -> torch.Tensor:
    """Return the output of the model's own attention function in float32.

    The eager function replaces flash kernels, which take 16 bits and no mask.
    """
    mask, size = call.mask, call.given[0].shape[2]
    if implementation not in ("sdpa", "eager"):
        implementation, behind = "eager", torch.arange(size)[:, None] - torch.arange(size)
        hidden = (behind < 0) | (behind >= (call.options.get("sliding_window") or size))
        mask = torch.zeros(size, size).masked_fill(hidden, -1e30).to(call.given[0])
    function = _function(call.module, implementation)
    return function(call.module, *call.given, mask, **call.options)[0]


def _wide(value: Any) -> Any:
    """Return a tensor of 16 bits in float32, and anything else unchanged."""
    half = isinstance(value, torch.Tensor) and value.dtype in ROUNDED
    return value.float() if half else value
