"""The laboratory's model: a plain causal Transformer around any position encoding."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaMLP,
    LlamaModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    eager_attention_forward,
)

from ropewalk.harness.encodings._config import (
    EncodingConfig,
    built,
    has_scores,
    plugin_of,
)
from ropewalk.harness.encodings.types import Angles, Places, check_cached, check_rows

States = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # queries, keys and values


class EncodingAttention(nn.Module):
    """Multi-head attention with what the encoding adds.

    It calls the attention of transformers' registry, with the encoding's scores as its mask; an
    encoding with ``values`` or ``attend`` is computed here.
    """

    def __init__(self, config: EncodingConfig, layer_idx: int, encoding: Any) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.encodings = (encoding,)  # in a tuple, so that its parameters are registered only once
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
        rows = hidden_states.shape[:-1]
        query, key, value = (
            project(hidden_states).view(*rows, -1, self.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        here = torch.arange(rows[1], device=query.device)
        here = here if position_ids is None else position_ids[0]
        if hasattr(self.encoding, "turn"):
            query, key = self.encoding.turn(query, key, position_embeddings, here)
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

    @property
    def encoding(self) -> Any:
        """The encoding, which is the same module in every layer."""
        return self.encodings[0]

    def part(
        self, states: States, places: Places, given: torch.Tensor | None, rows: slice, more: Any
    ) -> Any:
        """Return the attention of some queries over the keys that they see.

        The scores of all pairs are never held at once, and those of a part stay in the processor's
        cache. A gradient needs them all: then all queries are one part.
        """
        query, key, value = states
        if len(places.query[rows]) < len(places.query):
            last = (places.key <= places.query[rows].max()).nonzero().max()
            seen = slice(int(last) + 1)
            query, key, value = query[:, :, rows], key[:, :, seen], value[:, :, seen]
            places = Places(places.query[rows], places.key[seen])
            given = None if given is None else given[:, :, rows, seen]
        if hasattr(self.encoding, "attend"):
            return self.encoding.attend(self, query, key, value, places).transpose(1, 2)
        mask = self.mask(query, key, places, given)
        return self.attended((query, key, value), places, mask, more)

    def mask(
        self, query: torch.Tensor, key: torch.Tensor, places: Places, given: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the mask plus the scores that the encoding adds, if it adds any.

        A given mask is true where a key is seen, or is added to the scores. In bfloat16 the fused
        attention of a GPU takes scores in bfloat16 only, which changes attention weights by up to
        0.05 (ALiBi), 0.3 (KERPLE) and 0.02 % (FIRE) at eight windows; elsewhere they are float32.
        """
        if not hasattr(self.encoding, "scores"):
            return given
        fused = query.device.type != "cpu" and self.config._attn_implementation != "eager"
        wide = query.dtype if fused else torch.promote_types(query.dtype, torch.float32)
        scores: torch.Tensor = self.encoding.scores(self, query, key, places).to(wide)
        scores = scores if scores.dim() == 4 else scores[None]
        if given is None or given.dtype == torch.bool:
            hidden = (places.behind < 0)[None, None] if given is None else ~given
            return scores.masked_fill(hidden, float("-inf"))
        return scores + given

    def attended(self, states: States, places: Places, mask: torch.Tensor | None, more: Any) -> Any:
        """Return softmax attention, ``(batch, queries, heads, head_dim)``."""
        if not hasattr(self.encoding, "values"):
            interface = ALL_ATTENTION_FUNCTIONS.get_interface(
                self.config._attn_implementation, eager_attention_forward
            )
            return interface(self, *states, mask, scaling=self.scaling, dropout=0.0, **more)[0]
        query, key, value = states
        scores = query @ key.mT * self.scaling
        if mask is None or mask.dtype == torch.bool:
            hidden = places.behind < 0 if mask is None else ~mask
            scores = scores.masked_fill(hidden, float("-inf"))
        else:
            scores = scores + mask
        wide = torch.promote_types(query.dtype, torch.float32)
        weights = scores.softmax(-1, wide).to(query.dtype)
        out: torch.Tensor = weights @ value + self.encoding.values(self, weights, places)
        return out.transpose(1, 2)


class EncodingLayer(LlamaDecoderLayer):  # type: ignore[misc]  # its type is Any here
    """Attention and MLP, each after a norm."""

    def __init__(self, config: EncodingConfig, layer_idx: int, encoding: Any) -> None:
        GradientCheckpointingLayer.__init__(self)
        self.self_attn = EncodingAttention(config, layer_idx, encoding)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class NoRotation(nn.Module):
    """The rotary embedding of a model that has none."""

    def forward(self, _: torch.Tensor, position_ids: torch.Tensor) -> None:
        """Return no cos and sin."""


class EncodingModel(LlamaModel):  # type: ignore[misc]
    """From tokens to hidden states."""

    config_class = EncodingConfig
    _no_split_modules = ("EncodingLayer",)
    _supports_flash_attn = _supports_flex_attn = False

    def __init__(self, config: EncodingConfig) -> None:
        PreTrainedModel.__init__(self, config)
        self.encoding = built(plugin_of(config), config.shape)
        for module in self.encoding.modules():
            module._is_hf_initialized = True
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        numbers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(EncodingLayer(config, n, self.encoding) for n in numbers)
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        rotary = config.rope_parameters
        self.rotary_emb = LlamaRotaryEmbedding(config) if rotary else NoRotation()
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **more: Any,
    ) -> BaseModelOutputWithPast:
        """Return the hidden states, and the keys and values if ``use_cache``."""
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        use_cache = self.config.use_cache if use_cache is None else use_cache
        first = past_key_values.get_seq_length() if past_key_values is not None else 0
        next_ones = torch.arange(first, first + hidden.shape[1], device=hidden.device)[None]
        position_ids = next_ones if position_ids is None else position_ids
        check_rows(attention_mask, position_ids)
        if (use_cache or past_key_values is not None) and has_scores(self.encoding):
            check_cached(position_ids, next_ones)
        if hasattr(self.encoding, "inputs"):
            hidden = self.encoding.inputs(hidden, position_ids)
        return super().forward(
            inputs_embeds=hidden, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, use_cache=use_cache, **more,
        )  # fmt: skip


class EncodingForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """The language model: hidden states, and a head tied to the embeddings."""

    config_class = EncodingConfig
    _no_split_modules = EncodingModel._no_split_modules
    _supports_flash_attn = _supports_flex_attn = False

    def __init__(self, config: EncodingConfig) -> None:
        PreTrainedModel.__init__(self, config)
        self.model = EncodingModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def save_pretrained(self, save_directory: Any, **more: Any) -> None:
        """Write config and weights, and the file of a user's encoding beside them."""
        super().save_pretrained(save_directory, **more)
        file = Path(plugin_of(self.config).module.__file__ or "")
        if self.config.code is not None and file.resolve().parent != Path(save_directory).resolve():
            shutil.copy(file, save_directory)


AutoModel.register(EncodingConfig, EncodingModel)
AutoModelForCausalLM.register(EncodingConfig, EncodingForCausalLM)
