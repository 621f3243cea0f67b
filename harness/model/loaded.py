"""A model that Python holds already, as a checkpoint: it is measured as it is."""

from __future__ import annotations

from hashlib import sha256
from pathlib import PurePath
from typing import Any

import torch

from harness.errors import UserError
from harness.model.checkpoint import DTYPES, Checkpoint
from harness.names import printable
from harness.rope.config import rope_of


def hold(model: Any, tokenizer: Any) -> Checkpoint:
    """Return a loaded Hugging Face causal language model as a checkpoint, keyed by its weights.

    Its name is that of the folder or repository it was read from, else its class. Raises UserError
    for a model in training mode, without a rotary embedding, or in a dtype that is not measured.
    """
    kind = type(model).__name__
    if tokenizer is None:
        message = f"{kind} needs its tokenizer: run(model=…, tokenizer=…)."
        raise UserError(message)
    if model.training:
        message = f"{kind} is in training mode, where dropout applies; call model.eval()."
        raise UserError(message)
    dtype = str(model.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        message = f"{kind} computes in {dtype}; one of {', '.join(DTYPES)} is measured."
        raise UserError(message)
    name = PurePath(str(model.config.name_or_path)).name or kind
    return Checkpoint(
        name=name,
        label=printable(name),
        revision=None,
        fingerprint=_fingerprint(model),
        config=model.config,
        tokenizer=tokenizer,
        rope=rope_of(model.config),
        dtype=dtype,
        device=str(model.device),
        trust_remote_code=False,
        allow_pickle=False,
        loaded=model,
    )


def _fingerprint(model: Any) -> str:
    """Hash config and weights, every byte: a changed model has other numbers."""
    digest = sha256(model.config.to_json_string().encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        held = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(held.view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
