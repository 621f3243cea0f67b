"""A causal language model whose queries and keys are rotated to moved positions, or by layer.

Written by ``ropewalk export --to hf-code``; it imports only torch, numpy and transformers.
``moved_positions.npz`` beside it has ``inv_freq`` and ``factor`` of each layer, or bands: sets of
query-key pairs with the position to which each query and key is rotated. One softmax covers all
bands of a query. Keys are cached unrotated, so ``generate`` works, with a cache that grows. Prompts
of one batch have one length.
"""

from __future__ import annotations

import sys
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, LlamaForCausalLM
from transformers.utils import cached_file

NAME, DATA = "moved_positions", "moved_positions.npz"
ROWS = 512  # queries at a time


def angles(own: Any, x: torch.Tensor, positions: Any, inv_freq: Any, factor: Any) -> Any:
    """Return cos and sin of a model's rotary embedding at other frequencies."""
    other = copy(own)  # the model's own does not change, also for other threads
    other._buffers = dict(own._buffers)
    other.inv_freq = torch.from_numpy(inv_freq).to(x.device)
    other.attention_scaling = float(factor)
    # Not other.forward: a device map sets that to a call of the model's own module.
    return type(own).forward(other, x, positions.to(x.device))


def rotated(own: Any, x: torch.Tensor, positions: Any, inv_freq: Any, factor: Any) -> torch.Tensor:
    """Return queries or keys (batch, heads, tokens, width) rotated to these positions."""
    cos, sin = angles(own, x.float(), torch.from_numpy(positions)[None], inv_freq, factor)
    rotate = sys.modules[type(own).__module__].apply_rotary_pos_emb
    result: torch.Tensor = rotate(x.float(), x.float(), cos, sin)[0].to(x.dtype)
    return result


def unrotated(_: Any, args: Any, output: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a cos of 1 and a sin of 0 in place of the model's own."""
    return torch.ones_like(output[0]), torch.zeros_like(output[1])


def by_layer(own: Any, inv_freq: Any, factor: Any, _: Any, args: Any, kwargs: Any) -> Any:
    """Pass a layer its own cos and sin."""
    embeddings = angles(own, args[0], kwargs["position_ids"], inv_freq, factor)
    return args, {**kwargs, "position_embeddings": embeddings}


class MovedForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """The model, with the attention below in every layer."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        trunk = self.base_model
        self.moved_positions = data = dict(np.load(cached_file(config._name_or_path, DATA)))
        if "inv_freq" in data:
            for layer, *own in zip(trunk.layers, data["inv_freq"], data["factor"], strict=True):
                hook = partial(by_layer, trunk.rotary_emb, *own)
                layer.register_forward_pre_hook(hook, with_kwargs=True)
            return
        trunk.rotary_emb.register_forward_hook(unrotated)
        bands: dict[str, dict[str, Any]] = {}
        for name, values in data.items():
            part, _, index = name.rpartition("_")
            if index.isdecimal():
                bands.setdefault(index, {})[part] = values
        for module in self.modules():
            if hasattr(module, "layer_idx") and hasattr(module, "is_causal"):
                module.moved = (data, [*bands.values()], trunk.rotary_emb)
        self.set_attn_implementation(NAME)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save the model with its positions beside it."""
        super().save_pretrained(save_directory, *args, **kwargs)
        np.savez_compressed(Path(save_directory) / DATA, **self.moved_positions)


def no_mask(
    q_length: int | None = None, kv_length: int = 0, q_offset: Any = 0, kv_offset: int = 0,
    attention_mask: torch.Tensor | None = None, **_: Any,
) -> None:  # fmt: skip
    """Return no mask; raise ValueError for padded rows, or keys after the last query."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("positions are moved for whole rows of tokens; padding is not supported")
    # Without the number of queries nothing can be said.
    if q_length is not None and kv_offset + kv_length != int(q_offset) + q_length:
        raise ValueError(
            "positions are moved with a cache that grows; a static one is not supported"
        )


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """Return attention (batch, rows, heads, width); the rows are the last positions of the keys."""
    data, bands, rope = module.moved
    first, keys = key.shape[2] - query.shape[2], key.shape[2]
    if keys > data["length"]:
        raise ValueError(f"positions are stored for {data['length']} tokens, there are {keys}")
    if "query_scale" in data:
        scale = torch.from_numpy(data["query_scale"][first:keys])
        query = query * scale.to(query)[:, None]
    outputs = []
    value = value.repeat_interleave(query.shape[1] // key.shape[1], 1)
    for start in range(first, keys, ROWS):
        rows = query[:, :, start - first : start - first + ROWS]
        stop = start + rows.shape[2]
        scores = query.new_full((*rows.shape[:3], stop), -torch.inf, dtype=torch.float32)
        for band in bands:  # -inf stays where a pair is in no band
            add_scores(scores, rope, band, rows, key, start, module.layer_idx)
        scores *= kwargs.get("scaling") or rows.shape[-1] ** -0.5
        if (cap := kwargs.get("softcap")) is not None:
            scores = cap * torch.tanh(scores / cap).where(scores.isfinite(), scores)
        outputs.append(scores.softmax(-1).to(value.dtype) @ value[:, :, :stop])
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def add_scores(
    scores: torch.Tensor, rope: Any, band: Any, query: torch.Tensor, key: torch.Tensor,
    start: int, layer: int,
) -> None:  # fmt: skip
    """Write the scores of a band's pairs of queries, the first at ``start``, and earlier keys."""
    begin, stop = int(band["start"]), start + query.shape[2]
    low, high = max(start, begin), min(stop, begin + len(band["first"]))
    if low >= high:
        return
    rows, own = slice(low - start, high - start), slice(low - begin, high - begin)
    column, sharing = band.get("column"), query.shape[1] // key.shape[1]
    if column is not None and column.ndim == 3:  # each head has a key of its own
        key, column, sharing = key.repeat_interleave(sharing, 1), column[layer], 1
    reach = min(len(band["key"]), stop)
    place = blend if "blended" in band else placed
    keys = place(rope, key[:, :, :reach], band["key"][:reach], band, column)
    queries = placed(rope, query[:, :, rows], band["query"][own], band, column)
    if "phase" in band:  # an additional angle of every query
        queries = rotated(rope, queries, np.ones(queries.shape[2]), band["phase"], 1.0)
    at = np.arange(reach)
    inside = (at >= band["first"][own, None]) & (at < band["end"][own, None])
    products = (queries @ keys.repeat_interleave(sharing, 1).mT).float()
    part = scores[:, :, rows, :reach]
    part.copy_(products.where(torch.from_numpy(inside).to(key.device), part))


def placed(rope: Any, x: torch.Tensor, positions: Any, band: Any, column: Any) -> torch.Tensor:
    """Return queries or keys rotated to positions, each channel pair to those of its column.

    The columns may differ between heads.
    """
    if column is None:
        return rotated(rope, x, positions, band["inv_freq"], band["factor"])
    if column.ndim == 2:
        heads = [
            placed(rope, x[:, head : head + 1], positions, band, own)
            for head, own in enumerate(column)
        ]
        return torch.cat(heads, 1)
    wide, factor = x.float(), band["factor"]
    for at in np.unique(column):  # the other pairs turn by nothing
        own = np.where(column == at, band["inv_freq"], 0).astype(band["inv_freq"].dtype)
        wide = rotated(rope, wide, positions[:, at], own, factor)
        factor = 1.0
    return wide.to(x.dtype)


def blend(rope: Any, x: torch.Tensor, positions: Any, band: Any, column: Any) -> torch.Tensor:
    """Return keys at the blend of the two whole positions around theirs."""
    low = np.floor(positions)
    part = torch.from_numpy(positions - low).to(x.device, torch.float32)[:, None]
    one, other = (placed(rope, x, at, band, column).float() for at in (low, np.ceil(positions)))
    return ((1 - part) * one + part * other).to(x.dtype)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, no_mask)
