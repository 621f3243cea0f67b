"""A tiny Llama as a GGUF file, and the same weights as a folder."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.tiny import WINDOW, save_tiny, tiny_tokenizer

BASE = 20_000.0
NEVER = "À Á"  # a merge of two bytes that no text has; the format wants one
KINDS = {"Q4_1": gguf.LlamaFileType.MOSTLY_Q4_1, "F32": gguf.LlamaFileType.ALL_F32}
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.layers.": "blk.", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
}  # fmt: skip
SHAPE = {"intermediate_size": 64, "hidden_size": 64, "rope_parameters": {
    "rope_type": "default", "rope_theta": BASE,
}}  # fmt: skip


def save_gguf(
    file: Path, kind: str = "Q4_1", *, facts: dict[str, Any] | None = None, extra: str = "",
    split: str = "gpt-2",
) -> Path:  # fmt: skip
    """Write a GGUF file of a tiny Llama, and beside it a folder ``plain`` of the same weights.

    ``facts`` go over its metadata; ``extra`` is the name of one more tensor, ``split`` that of
    the way a text is split.
    """
    folder = save_tiny(file.parent / "plain", **SHAPE)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    writer = gguf.GGUFWriter(file, "llama")
    _describe(writer, model.config, facts or {}, KINDS[kind], split)
    how = gguf.GGMLQuantizationType[kind]
    state = model.state_dict()
    for name, tensor in state.items():
        rows = tensor.numpy()
        if rows.ndim == 2:
            packed = quantize(_interleaved(name, rows, model.config), how)
            writer.add_tensor(_named(name), packed, raw_dtype=how)
            tensor.copy_(torch.from_numpy(dequantize(quantize(rows, how), how)))
        else:
            writer.add_tensor(_named(name), rows)
    if extra:
        writer.add_tensor(extra, np.ones(8, dtype=np.float32))
    model.save_pretrained(folder)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
    ):
        write()
    writer.close()
    return file


def _describe(writer: Any, config: Any, facts: dict[str, Any], kind: Any, split: str) -> None:
    """Write the metadata, with the tokenizer of ``tests.tiny``."""
    told = {
        "context_length": WINDOW, "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads, "vocab_size": config.vocab_size,
        "rope.dimension_count": config.head_dim,
    }  # fmt: skip
    for name, value in {**told, **facts}.items():
        if isinstance(value, str):
            writer.add_string(f"llama.{name}", value)
        elif isinstance(value, float):
            writer.add_float32(f"llama.{name}", value)
        else:
            writer.add_uint32(f"llama.{name}", value)
    if "rope.freq_base" not in facts:
        writer.add_rope_freq_base(BASE)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_file_type(kind)
    tokenizer: PreTrainedTokenizerFast = tiny_tokenizer()
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    words += [NEVER.replace(" ", "")]
    words += [f"<unused{index}>" for index in range(config.vocab_size - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (len(words) - 1)])
    writer.add_token_merges([NEVER])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def _named(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def _interleaved(name: str, rows: np.ndarray[Any, Any], config: Any) -> np.ndarray[Any, Any]:
    """Return rows in the order of llama.cpp, whose rotated pairs are neighbours."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((count for part, count in heads.items() if part in name), 0)
    if not count:
        return rows
    halves = rows.reshape(count, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))
