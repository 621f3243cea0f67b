"""Models of a few thousand random weights, saved as a hub folder is: made on the spot."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

WINDOW = 64  # trained length of every tiny model, in tokens
BOS = "<s>"
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": WINDOW,
    "initializer_range": 0.5,  # large, so that logits differ and an argmax is no accident
}
YARN = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0,
    "original_max_position_embeddings": WINDOW,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 1, "head_dim": 16}
# What makes a family worth a test of its own: where its logits or its rotary part differ.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": None},
    "qwen2": {"num_key_value_heads": 1},
    "qwen3": GROUPED,
    "gemma2": {
        **GROUPED, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 5.0, "layer_types": ["full_attention", "full_attention"],
    },
    "gpt_neox": {"rope_parameters": {
        "rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25,
    }},
    "cohere": {"num_key_value_heads": 1, "logit_scale": 0.25},
    "qwen3_moe": {
        **GROUPED, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2,
        "mlp_only_layers": [],
    },
    "granite": {"num_key_value_heads": 1, "logits_scaling": 4.0, "attention_multiplier": 0.25},
}  # fmt: skip


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token a byte, whose begin token is ``<s>``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {BOS: 0, **{letter: index for index, letter in enumerate(alphabet, start=1)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS)


def tiny_config(family: str = "llama", **changes: Any) -> Any:
    """Return the config of a family; ``changes`` go over it."""
    tokens = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    return AutoConfig.for_model(family, **{**SHAPE, **tokens, **FAMILIES[family], **changes})


def save_tiny(folder: Path, family: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Save a model of seeded random weights and its tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(family, **changes))
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
