"""Adapters of seeded random weights, as training would leave them."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from ropewalk.harness.models.checkpoint import Checkpoint, open_checkpoint


def config(kind: str) -> Any:
    """Return the config of an adapter; PEFT takes seconds to import, so only where it is used."""
    import peft

    kinds: dict[str, Any] = {
        "lora": peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
        "dora": peft.LoraConfig(
            r=4, target_modules="all-linear", use_dora=True, use_rslora=True,
            init_lora_weights=False,
        ),
        "whole": peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]),
        "ia3": peft.IA3Config(
            target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"],
            init_ia3_weights=False,
        ),
        "head": peft.LoraConfig(r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False),
        "embedding": peft.LoraConfig(r=4, target_modules=["embed_tokens"], init_lora_weights=False),
        "both": peft.LoraConfig(
            r=4, target_modules=["embed_tokens"], init_lora_weights=False, ensure_weight_tying=True
        ),
        "prefix": peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    }  # fmt: skip
    return kinds[kind]


def save(base: Path, folder: Path, kind: str = "lora", seed: int = 0) -> Path:
    """Save an adapter of seeded random weights, as training would leave it."""
    from peft import get_peft_model

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(base)
        get_peft_model(model, config(kind)).save_pretrained(folder)
    return folder


def opened(base: Path, adapter: Path | None, **changes: Any) -> Checkpoint:
    given = {"revision": None, "dtype": "float32", "device": "cpu", "allow_pickle": False}
    return open_checkpoint(
        str(base), **{**given, **changes}, trust_remote_code=False,
        adapter=str(adapter) if adapter else None,
    )  # fmt: skip
