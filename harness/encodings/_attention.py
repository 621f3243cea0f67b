"""Attention in the laboratory: softmax, or an encoding's own, of some queries at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from harness.encodings._config import EncodingConfig, has_scores
from harness.encodings._types import Places

Angles = tuple[torch.Tensor, torch.Tensor]


class EncodingAttention(nn.Module):
    """Multi-head attention with what the encoding adds.

    It calls the attention of transformers' registry, with scores the encoding adds as its mask;
    an encoding with ``values`` or ``attend`` is computed here.
    """

    def __init__(self, config: EncodingConfig, layer_idx: int, encoding: Any) -> None:
        super().__init__()
        self.config, self.layer_idx, self.held = config, layer_idx, (encoding,)
        self.head_dim = config.shape.head_dim
        self.scaling = getattr(encoding, "scale", self.head_dim**-0.5)
        self.num_key_value_groups, self.is_causal, self.attention_dropout = 1, True, 0.0
        self.in_parts = has_scores(encoding)
        wide = config.num_attention_heads * self.head_dim
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(config.hidden_size, wide, bias=False) for _ in range(3)
        )
        self.o_proj = nn.Linear(wide, config.hidden_size, bias=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Angles | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        **more: Any,
    ) -> tuple[torch.Tensor, Any]:
        """Return the attention's output for its rows; positions are those of every row."""
        (encoding,), rows = self.held, hidden_states.shape[:-1]
        query, key, value = (
            project(hidden_states).view(*rows, -1, self.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        here = torch.arange(rows[1], device=query.device)
        here = here if position_ids is None else position_ids[0]
        if hasattr(encoding, "turn"):
            query, key = encoding.turn(query, key, position_embeddings, here)
        there = here
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
            there = torch.arange(key.shape[2], device=key.device)
        states, places = (query, key, value), Places(here, there)
        step = rows[1]
        if self.in_parts and not torch.is_grad_enabled():
            step = self.config.queries_at_once(len(there), query.device)
        parts = [
            self.part(states, places, attention_mask, slice(first, first + step), more)
            for first in range(0, rows[1], step)
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return self.o_proj(out.reshape(*rows, -1)), None

    def part(
        self, states: tuple[torch.Tensor, ...], places: Places, given: torch.Tensor | None,
        rows: slice, more: dict[str, Any],
    ) -> Any:  # fmt: skip
        """Return the attention of some queries over the keys that they see.

        So no scores of all pairs are held, and those of a part stay in a processor's cache. A
        gradient needs them all: there all queries are one part.
        """
        (encoding,), (query, key, value) = self.held, states
        if len(places.query[rows]) < len(places.query):
            last = (places.key <= places.query[rows].max()).nonzero().max()
            seen = slice(int(last) + 1)
            query, key, value = query[:, :, rows], key[:, :, seen], value[:, :, seen]
            places = Places(places.query[rows], places.key[seen])
            given = None if given is None else given[:, :, rows, seen]
        if hasattr(encoding, "attend"):
            return encoding.attend(self, query, key, value, places).transpose(1, 2)
        mask = self.mask(encoding, query, key, places, given)
        return self.attended(encoding, (query, key, value), places, mask, more)

    def mask(
        self, encoding: Any, query: torch.Tensor, key: torch.Tensor, places: Places,
        given: torch.Tensor | None,
    ) -> torch.Tensor | None:  # fmt: skip
        """Return the mask with the scores that the encoding adds; the one given where it has none.

        A given mask is true where a key is seen, or is added to the scores. In bfloat16 the fused
        attention of a GPU takes scores in bfloat16 alone, which moves weights of attention by up to
        0.05 (ALiBi), 0.3 (KERPLE) and 0.02 % (FIRE) at eight windows; elsewhere they are float32.
        """
        if not hasattr(encoding, "scores"):
            return given
        fused = query.device.type != "cpu" and self.config._attn_implementation != "eager"
        wide = query.dtype if fused else torch.promote_types(query.dtype, torch.float32)
        scores: torch.Tensor = encoding.scores(self, query, key, places).to(wide)
        scores = scores if scores.dim() == 4 else scores[None]
        if given is None or given.dtype == torch.bool:
            hidden = (places.behind < 0)[None, None] if given is None else ~given
            return scores.masked_fill(hidden, float("-inf"))
        return scores + given

    def attended(
        self, encoding: Any, states: tuple[torch.Tensor, ...], places: Places,
        mask: torch.Tensor | None, more: dict[str, Any],
    ) -> Any:  # fmt: skip
        """Return softmax attention, ``(batch, queries, heads, head_dim)``."""
        if not hasattr(encoding, "values"):
            interface = ALL_ATTENTION_FUNCTIONS.get_interface(
                self.config._attn_implementation, eager_attention_forward
            )
            return interface(self, *states, mask, scaling=self.scaling, dropout=0.0, **more)[0]
        query, key, value = states
        scores = query @ key.mT * self.scaling
        scores = scores.masked_fill(places.behind < 0, float("-inf")) if mask is None else (
            scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        )  # fmt: skip
        wide = torch.promote_types(query.dtype, torch.float32)
        weights = scores.softmax(-1, wide).to(query.dtype)
        out: torch.Tensor = weights @ value + encoding.values(self, weights, places)
        return out.transpose(1, 2)
