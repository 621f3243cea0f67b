"""Find which layers of a model rotate, what they see, and which of them a method scales."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from harness.hub import attempt
from harness.models.meta import without_weights
from harness.patching.config import WINDOWS, rescaled
from harness.patching.frequencies import as_is, rotary_name
from scaling.types import Frequencies

Kind = Literal["full", "sliding"]


@dataclass(frozen=True)
class Layers:
    """The numbers of attention layers of a model.

    Other mixers (state space, convolution) and layers that select keys by an index do not count.

    ``rotated`` and ``plain`` count those with and without a rotary embedding, by what they see:
    ``full`` everything before, ``sliding`` the last ``window`` tokens. ``apart`` is true for a
    model whose sliding layers have their own rotary embedding, which no method changes.
    """

    rotated: Counter[Kind]
    plain: Counter[Kind]
    window: int | None
    apart: bool


def layers_of(config: Any, *, trust_remote_code: bool = False) -> Layers:
    """Find what each attention layer does from the config alone, without memory for weights.

    The model is built on the meta device, and autograd shows whether the output of each attention
    depends on cos and sin. Raises UserError for a rotary module that is not supported.
    """
    bare = rescaled(
        config, {"rope_type": "default"}
    )  # a dynamic type reads values, and the meta device has none
    model = without_weights(bare, trust_remote_code=trust_remote_code).requires_grad_(
        requires_grad=False
    )
    own: Any = model.get_submodule(rotary_name(model))
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    counts: dict[bool, Counter[Kind]] = {True: Counter(), False: Counter()}
    for index, attention in _attention(model):
        kind = _kind(text, index)
        if kind is not None:
            counts[_depends(attention, own, text, index)][kind] += 1
    sliding = any(count["sliding"] for count in counts.values())
    apart = isinstance(own.rope_type, dict)
    return Layers(counts[True], counts[False], window if sliding else None, apart)


def built(config: Any, changed: Any, *, trust_remote_code: bool = False) -> Frequencies:
    """Return what the model's own rotary class has, built by the library from a changed config.

    Both configs are those of the text model. Raises UserError where the library refuses it.
    """
    bare = rescaled(config, {"rope_type": "default"})
    model = without_weights(bare, trust_remote_code=trust_remote_code)
    kind = type(model.get_submodule(rotary_name(model)))
    return as_is(attempt("config", f"this {config.model_type}", lambda: kind(config=changed)))


def position_limit(model: Any) -> int | None:
    """Return for how many tokens a model has positions; None where their number has no end.

    They are in a table, learned or computed (GPT-J), with as many rows as the config gives a
    window, beside those that its own class sets apart.
    """
    tokens, text = model.get_input_embeddings(), model.config.get_text_config()
    tables = {m for m in model.modules() if isinstance(m, nn.Embedding) and m is not tokens}
    sizes = {table.num_embeddings - int(getattr(table, "offset", 0)) for table in tables}
    sizes |= {len(b) for name, b in model.named_buffers() if b.dim() == 2 and "position" in name}
    return next((w for name in WINDOWS if (w := getattr(text, name, None)) in sizes), None)


def _attention(model: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """Yield each layer's attention: the innermost of the modules that receive cos and sin."""
    found: dict[int, nn.Module] = {}
    for module in model.modules():  # a layer comes before the attention inside it
        index: Any = getattr(module, "layer_idx", None)
        if index is not None and "position_embeddings" in _parameters(module):
            found[index] = module
    yield from found.items()


def _kind(text: Any, index: int) -> Kind | None:
    """Return what a layer sees, None for a layer without softmax attention."""
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return "sliding" if getattr(text, "sliding_window", None) else "full"
    known: dict[str, Kind] = {"full_attention": "full", "sliding_attention": "sliding"}
    return known.get(kinds[index])


def _depends(attention: nn.Module, own: Any, text: Any, index: int) -> bool:
    """Return whether an attention's output depends on its inputs cos and sin."""
    hidden = torch.empty(1, 2, text.hidden_size, device="meta")
    layer = {"layer_type": text.layer_types[index]} if isinstance(own.rope_type, dict) else {}
    angles = own(hidden, torch.zeros(1, 2, dtype=torch.int64, device="meta"), **layer)
    watched = tuple(part.detach().requires_grad_() for part in angles)
    needed = {
        name: None
        for name, parameter in _parameters(attention).items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    with torch.enable_grad():
        output: Any = attention(
            **{**needed, "hidden_states": hidden, "position_embeddings": watched}
        )
    return bool((output[0] if isinstance(output, tuple) else output).requires_grad)


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters
