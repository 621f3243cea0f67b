"""Run by vLLM's own Python: print the angles that its classes compute for exported configs.

A line of stdin is one config: a folder, overrides, a length, and the factor that the model's class
gives ``get_rope``. A line of stdout has cosines, then sines, at positions 1, 7 and length - 1.
"""

import json
import sys
from types import SimpleNamespace

import torch
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.transformers_utils.config import get_config, get_hf_text_config

for line in sys.stdin:
    asked = json.loads(line)
    nested = {key: part for key, part in asked["overrides"].items() if isinstance(part, dict)}
    plain = {key: part for key, part in asked["overrides"].items() if key not in nested}
    # As ModelConfig does, which also loads what reads images (it needs torchvision).
    config = get_config(asked["model"], False, hf_overrides_kw=plain)
    object.__new__(ModelConfig)._apply_dict_overrides(config, nested)
    text, engine = get_hf_text_config(config), VllmConfig()
    engine.model_config = SimpleNamespace(max_model_len=asked["length"])
    with set_current_vllm_config(engine):
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        longest, parameters = text.max_position_embeddings, text.rope_parameters
        rope = get_rope(
            head, longest, True, parameters, torch.float32,
            mrope_positions_factor=asked["positions_factor"],
        )  # fmt: skip
    cache = getattr(rope, "cos_sin_cache", None)
    if cache is None:  # of longrope: the short window, then the long one
        cache = rope.long_short_cos_sin_cache[rope.original_max_position_embeddings :]
    rows = cache[[1, 7, asked["length"] - 1]].tolist()
    sys.stdout.write(f"angles {json.dumps(rows)}\n")
