"""A model that Python holds already, as a checkpoint: it is measured as it is."""

from __future__ import annotations

from hashlib import sha256
from pathlib import PurePath
from typing import Any

import torch

from harness.errors import UserError
from harness.models.adapter import Adapter
from harness.models.checkpoint import DTYPES, Checkpoint
from harness.models.layers import position_limit
from harness.models.opening import packed
from harness.names import printable
from harness.patching.config import geometry_of, is_rotary

APPLIED = ("active_adapters", "merged_adapters", "disable_adapters", "scaling")  # of PEFT's layers
GENERATION = ("repetition_penalty", "eos_token_id")  # what texts depend on beside the weights


def hold(model: Any, tokenizer: Any, trained_length: int | None = None) -> Checkpoint:
    """Return a loaded Hugging Face causal language model as a checkpoint, keyed by its weights.

    Its name is that of the folder or repository it was read from, else its class. Raises UserError
    for a model in training mode, or in a dtype that is not measured.
    """
    kind = type(model).__name__
    own, model = model, _with_layers(model)
    if tokenizer is None:
        raise UserError(f"{kind} needs its tokenizer: run(model=…, tokenizer=…).")
    if model.training:
        raise UserError(f"{kind} is in training mode, where dropout applies; call model.eval().")
    dtype = str(model.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise UserError(f"{kind} computes in {dtype}; one of {', '.join(DTYPES)} is measured.")
    name = PurePath(str(model.config.name_or_path)).name or kind
    adapter, quantized = _adapter(own), packed(model.config)
    name += f"-{quantized}" if quantized else ""
    name += f"+{adapter.name}" if adapter else ""
    return Checkpoint(
        name=name,
        label=printable(name),
        revision=None,
        fingerprint=_fingerprint(model),
        config=model.config,
        tokenizer=tokenizer,
        rope=geometry_of(model.config, trained_length),
        dtype=dtype,
        device=str(model.device),
        trust_remote_code=False,
        allow_pickle=False,
        quantized=quantized,
        adapter=adapter,
        positions=None if is_rotary(model.config) else position_limit(model),
        loaded=model,
    )


def _with_layers(model: Any) -> Any:
    """Return of a PEFT model the base model whose layers hold the adapter; of others, the model.

    Raises UserError for an adapter that is more than its layers, as a prompt is.
    """
    if not hasattr(model, "get_base_model"):
        return model
    base = model.get_base_model()
    some = torch.arange(1, 17, device=base.device)[None] % base.config.get_text_config().vocab_size
    with torch.no_grad():
        same = torch.equal(model(input_ids=some).logits, base(input_ids=some).logits)
    if not same:
        kind = model.active_peft_config.peft_type.value
        message = f"the adapter of kind {kind} is not in the layers of {type(base).__name__} alone;"
        message += " only adapters of weights are measured."
        raise UserError(message)
    return base


def _adapter(model: Any) -> Adapter | None:
    """Return the active adapter of a PEFT model, which is not merged."""
    if not hasattr(model, "get_base_model"):
        return None
    config = model.active_peft_config
    return Adapter(
        name=str(model.active_adapter), folder="", fingerprint=_fingerprint(model),
        kind=str(config.peft_type.value), base=config.base_model_name_or_path, merged=False,
    )  # fmt: skip


def _fingerprint(model: Any) -> str:
    """Hash config and weights, every byte: a changed model has other numbers.

    Of the generation config what changes a text; of adapters also how they are applied, which the
    weights do not show.
    """
    digest = sha256(model.config.to_json_string().encode())
    generation = getattr(model, "generation_config", None)
    digest.update(f"{[getattr(generation, name, None) for name in GENERATION]}".encode())
    for name, module in model.named_modules():
        if hasattr(module, "active_adapters") and hasattr(module, "merged_adapters"):
            told = [getattr(module, part, None) for part in APPLIED]
            digest.update(f"{name} {told}".encode())
    for name, tensor in model.state_dict().items():
        if tensor.is_meta:
            message = f"{type(model).__name__} has layers outside memory ({name}), as accelerate"
            message += " puts them; give the model's name, and device_map='auto'."
            raise UserError(message)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        held = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(held.view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
