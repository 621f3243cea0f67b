"""Measure the heads of a model on texts: the tables from which some methods rank them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ropewalk.harness.engine.structure import attending
from ropewalk.harness.patching.banded_attention import BandedAttention
from ropewalk.harness.patching.bands import verified_layouts
from ropewalk.harness.patching.frequencies import as_is, placed, rotary_name
from ropewalk.harness.patching.layout import NAME, Layout
from ropewalk.scaling.types import Bands, Frequencies, by_distance

OUTLIER = 3.0  # times the mean attention: a key with more is one (Ms-PoE, section 3.2)


@dataclass(frozen=True)
class HeadTables:
    """Means over texts, float64: ``outlier_shares`` (layers, heads), ``pair_norms`` (…, pairs).

    An outlier share is the share of keys to which the last query of a text gives more than three
    times the mean attention, without rotation (Ms-PoE, arXiv:2403.04797). A pair norm is the mean
    over tokens of the norm of a channel pair of the query times that of the key at the same token
    (DPE, arXiv:2504.18857). Both are zero for a layer that is not rotated.
    """

    outlier_shares: Tensor
    pair_norms: Tensor


@torch.inference_mode()
def measure_heads(model: Any, texts: Iterable[Sequence[int]]) -> HeadTables:
    """Run a model over texts, its own frequencies in place, and measure every query head.

    Raises UserError, naming the model, where its attention cannot be replaced; ValueError for no
    text.
    """
    name = rotary_name(model)
    own = as_is(model.get_submodule(name))
    layouts, config = verified_layouts(model, name), model.config.get_text_config()
    shape = (config.num_hidden_layers, config.num_attention_heads)
    outliers, norms = torch.zeros(shape).double(), torch.zeros(*shape, len(own.inv_freq)).double()

    def recorded(
        attention: BandedAttention, module: Any, query: Any, key: Any, *args: Any, **named: Any
    ) -> tuple[Tensor, None]:
        layout = layouts[module]
        if layout is not None:
            scale = named.get("scaling") or query.shape[-1] ** -0.5
            outliers[module.layer_idx] += outlier_shares(query[0], key[0], scale).cpu()
            norms[module.layer_idx] += pair_norms(query[0], key[0], layout).cpu()
        return attention(module, query, key, *args, **named)

    count = 0
    for tokens in texts:
        count += 1
        bands = Bands(len(tokens), (by_distance(len(tokens), own, 0),))
        attention = BandedAttention(bands, layouts)
        at_rest = placed(model, name, Frequencies(torch.zeros_like(own.inv_freq)))
        with at_rest, attending(model, NAME, partial(recorded, attention), attention.mask):
            ids = torch.tensor([list(tokens)], device=model.device)
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
    if not count:
        raise ValueError("heads are measured on one text or more")
    return HeadTables(outliers / count, norms / count)


def outlier_shares(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Return the share of outliers of each head's last query, float64 ``(heads,)``.

    ``query`` is unrotated, (heads, tokens, width), ``key`` (groups, tokens, width).
    """
    last = query[:, -1].float().reshape(len(key), -1, query.shape[-1])  # (groups, sharing, width)
    weights = (last @ key.float().mT * scale).softmax(-1).flatten(0, 1)
    shares: Tensor = (weights > OUTLIER / key.shape[1]).double().mean(-1)
    return shares


def pair_norms(query: Tensor, key: Tensor, layout: Layout) -> Tensor:
    """Return the mean product of the norms of each channel pair, float64 ``(heads, pairs)``."""
    rotated = (layout.pair >= 0).to(query.device)
    pair = layout.pair.to(query.device)[rotated]
    norms = []
    for states in (query, key):
        squares = states[..., rotated].float().square()
        summed = squares.new_zeros((*squares.shape[:2], int(pair.max()) + 1))
        norms.append(summed.index_add_(-1, pair, squares).sqrt())
    ours, theirs = norms
    return (ours * theirs.repeat_interleave(len(query) // len(key), 0)).mean(1).double()
