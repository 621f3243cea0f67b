"""The laboratory's model: a plain causal Transformer around any position encoding."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DynamicCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from harness.encodings._attention import EncodingAttention
from harness.encodings._config import EncodingConfig, built, check_rotary, has_scores, plugin_of
from harness.encodings._types import check_cached, check_rows


class EncodingLayer(GradientCheckpointingLayer):  # type: ignore[misc]  # its type is Any here
    """Attention and MLP, each after a norm."""

    def __init__(self, config: EncodingConfig, layer_idx: int, encoding: Any) -> None:
        super().__init__()
        self.self_attn = EncodingAttention(config, layer_idx, encoding)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
        """Return the hidden states after this layer."""
        hidden_states = (
            hidden_states + self.self_attn(self.input_layernorm(hidden_states), **more)[0]
        )
        out: torch.Tensor = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return out


class EncodingPreTrainedModel(PreTrainedModel):  # type: ignore[misc]  # its type is Any here
    """What both classes have: the config's class, and which attention they take."""

    config_class = EncodingConfig
    base_model_prefix = "model"
    _no_split_modules = ("EncodingLayer",)
    _supports_sdpa = True
    _supports_attention_backend = True


class EncodingModel(EncodingPreTrainedModel):
    """From tokens to hidden states."""

    def __init__(self, config: EncodingConfig) -> None:
        super().__init__(config)
        self.encoding = built(plugin_of(config), config.shape)
        check_rotary(config, self.encoding)
        for module in self.encoding.modules():
            module._is_hf_initialized = True
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        numbers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(EncodingLayer(config, n, self.encoding) for n in numbers)
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config) if config.rope_parameters else None
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Return the hidden states, and the keys and values if ``use_cache``."""
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if past_key_values is None and (self.config.use_cache if use_cache is None else use_cache):
            past_key_values = DynamicCache(config=self.config)
        first = past_key_values.get_seq_length() if past_key_values is not None else 0
        next_ones = torch.arange(first, first + hidden.shape[1], device=hidden.device)[None]
        position_ids = next_ones if position_ids is None else position_ids
        check_rows(attention_mask, position_ids)
        if past_key_values is not None and has_scores(self.encoding):
            check_cached(position_ids, next_ones)
        mask = create_causal_mask(
            config=self.config, inputs_embeds=hidden, attention_mask=attention_mask,
            past_key_values=past_key_values, position_ids=position_ids,
        )  # fmt: skip
        if hasattr(self.encoding, "inputs"):
            hidden = self.encoding.inputs(hidden, position_ids)
        angles = None if self.rotary_emb is None else self.rotary_emb(hidden, position_ids)
        for layer in self.layers:
            hidden = layer(
                hidden, position_embeddings=angles, attention_mask=mask,
                position_ids=position_ids, past_key_values=past_key_values,
            )  # fmt: skip
        return BaseModelOutputWithPast(self.norm(hidden), past_key_values)


class EncodingForCausalLM(EncodingPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The language model: hidden states, and a head tied to the embeddings."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: EncodingConfig) -> None:
        super().__init__(config)
        self.model = EncodingModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int = 0,
        **more: Any,
    ) -> CausalLMOutputWithPast:
        """Return the logits of the last so many rows (0: of all), and the loss of labels."""
        out = self.model(input_ids=input_ids, **more)
        logits = self.lm_head(out.last_hidden_state[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size
            )
        return CausalLMOutputWithPast(loss, logits, out.past_key_values)

    def save_pretrained(self, save_directory: Any, **more: Any) -> None:
        """Write config and weights, and the file of a user's encoding beside them."""
        super().save_pretrained(save_directory, **more)
        file = Path(plugin_of(self.config).module.__file__ or "")
        if self.config.code is not None and file.resolve().parent != Path(save_directory).resolve():
            shutil.copy(file, save_directory)


AutoConfig.register(EncodingConfig.model_type, EncodingConfig)
AutoModel.register(EncodingConfig, EncodingModel)
AutoModelForCausalLM.register(EncodingConfig, EncodingForCausalLM)
