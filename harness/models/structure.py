"""Find out from its config alone what a model is: built without weights, layer by layer."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_map

from ropewalk.harness.engine import language_model
from ropewalk.harness.errors import foreign
from ropewalk.harness.patching.config import WINDOWS
from ropewalk.harness.patching.frequencies import as_is, rotary_name
from ropewalk.scaling.types import Frequencies


def auto_model(config: Any) -> Any:
    """Return transformers' class that opens a model: for causal or else for image-text models.

    Their import takes as long as that of torch; a sweep that is measured already needs no model.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    import ropewalk.harness.encodings._model  # noqa: F401  # registers its classes

    own = getattr(config, "auto_map", None) or {}
    for kind in (AutoModelForCausalLM, AutoModelForImageTextToText):
        if kind.__name__ in own or type(config) in kind._model_mapping:
            return kind
    return AutoModelForCausalLM


def without_weights(config: Any, *, trust_remote_code: bool) -> Any:
    """Build a model in eval mode, without its weights; raise UserError for a bad config."""
    with foreign(f"the config of this {config.model_type} cannot be read"), torch.device("meta"):
        build = auto_model(config).from_config
        return build(config, trust_remote_code=trust_remote_code).eval()


def weight_bytes(config: Any, dtype: torch.dtype, trust_remote_code: bool) -> int:
    """Return the bytes of a model's weights in memory, quantised ones as their library holds them.

    Without that library, as on a machine that only gives work to others, they count in full.
    """
    from transformers.integrations.accelerate import compute_module_sizes

    model = without_weights(config, trust_remote_code=trust_remote_code).to(dtype)
    quantizer: Any = None
    if getattr(config, "quantization_config", None) is not None:
        from transformers.quantizers.auto import get_hf_quantizer  # with every model's code

        options: dict[str, Any] = {"weights_only": True, "user_agent": {}}
        named = foreign(f"the weights of this {config.model_type} cannot be read")
        with named, suppress(ImportError), torch.device("meta"):
            quantizer = get_hf_quantizer(deepcopy(config), None, None, **options)[0]
            quantizer.preprocess_model(model, device_map=None)
    return int(compute_module_sizes(model, quantizer)[0][""])


Kind = Literal["full", "sliding"]
KINDS: dict[str, Kind] = {  # a hybrid layer has attention beside a state space
    "full_attention": "full", "hybrid": "full", "sliding_attention": "sliding",
    "chunked_attention": "sliding",  # sees at most a chunk
}  # fmt: skip


@dataclass(frozen=True)
class Layers:
    """The numbers of attention layers of a model with and without a rotary embedding.

    They are counted by what they see: ``full`` everything before, ``sliding`` the last ``window``
    tokens. Other mixers (state space, convolution) and layers that select keys by an index do not
    count. With ``own_sliding`` the sliding layers have their own rotary embedding, which no method
    changes.
    """

    rotated: Counter[Kind]
    plain: Counter[Kind]
    window: int | None
    own_sliding: bool


def layers_of(config: Any, *, trust_remote_code: bool = False) -> Layers:
    """Find what each attention layer does from the config alone, without memory for weights.

    The model is built on the meta device, and autograd shows whether the output of each attention
    depends on cos and sin. Raises UserError for a rotary module that is not supported, and for
    layers that do not run there.
    """
    model = without_weights(config, trust_remote_code=trust_remote_code)
    model.requires_grad_(requires_grad=False)
    own: Any = model.get_submodule(rotary_name(model))
    # A dynamic type reads values, and the meta device has none. The model is this function's own.
    kinds = own.rope_type
    own.rope_type = dict.fromkeys(kinds, "default") if isinstance(kinds, dict) else "default"
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    innermost: dict[int, nn.Module] = {}
    for module in language_model(model).modules():  # a layer comes before the attention inside it
        index: Any = getattr(module, "layer_idx", None)
        if index is not None and "position_embeddings" in _parameters(module):
            innermost[index] = module
    types = getattr(text, "layer_types", None)
    counts: dict[bool, Counter[Kind]] = {True: Counter(), False: Counter()}
    for index, attention in innermost.items():
        kind = KINDS.get(types[index]) if types else "sliding" if window else "full"
        if kind is not None:  # else it has no softmax attention
            with foreign(f"the layers of this {config.model_type} cannot be told apart"):
                counts[_depends(attention, own, text, index)][kind] += 1
    sliding = any(count["sliding"] for count in counts.values())
    own_sliding = isinstance(own.rope_type, dict)
    window = window or getattr(text, "attention_chunk_size", None)
    return Layers(counts[True], counts[False], window if sliding else None, own_sliding)


def own_frequencies(model: Any, config: Any) -> Frequencies:
    """Return what a model's own rotary class has, built by the library from a text model's config.

    Raises UserError if the library raises an error.
    """
    kind = type(model.get_submodule(rotary_name(model)))
    with foreign(f"the config of this {config.model_type} cannot be read"):
        return as_is(kind(config=config))


def position_limit(model: Any) -> int | None:
    """Return the most positions that a model has, in tokens; None if there is no limit.

    Positions in a table, learned or computed (GPT-J), have as many rows as the config gives a
    window, besides those that the table's own class reserves.
    """
    tokens, text = model.get_input_embeddings(), model.config.get_text_config()
    tables = {m for m in model.modules() if isinstance(m, nn.Embedding) and m is not tokens}
    sizes = {table.num_embeddings - int(getattr(table, "offset", 0)) for table in tables}
    sizes |= {len(b) for name, b in model.named_buffers() if b.dim() == 2 and "position" in name}
    return next((w for name in WINDOWS if (w := getattr(text, name, None)) in sizes), None)


def _depends(attention: nn.Module, own: Any, text: Any, index: int) -> bool:
    """Return whether an attention's output depends on its inputs cos and sin."""
    hidden = torch.empty(1, 2, text.hidden_size, device="meta")
    layer = {"layer_type": text.layer_types[index]} if isinstance(own.rope_type, dict) else {}
    positions = torch.zeros(1, 2, dtype=torch.int64, device="meta")
    angles = own(hidden, positions, **layer)
    watched: Any = tree_map(lambda part: part.detach().requires_grad_(), angles)
    parameters = _parameters(attention).values()
    required = (p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD)
    inputs: dict[str, Any] = dict.fromkeys(parameter.name for parameter in required)
    inputs |= {"hidden_states": hidden, "position_embeddings": watched}
    inputs |= {"position_ids": positions} if "position_ids" in inputs else {}
    with torch.enable_grad():
        output: Any = attention(**inputs)
    return bool((output[0] if isinstance(output, tuple) else output).requires_grad)


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters
