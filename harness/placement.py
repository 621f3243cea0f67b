"""A model larger than one device: accelerate places its layers, here is where its inputs go."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from typing import Any

import torch

from harness.errors import UserError


def check_whole(device_map: str | None, device: str) -> None:
    """Raise UserError for a device beside a map, which takes all."""
    if device_map and device != "auto":
        message = f"--device-map {device_map} takes every device there is; leave --device out."
        raise UserError(message)


def spread() -> dict[str, Any]:
    """Return how from_pretrained spreads a model over GPUs, then memory, then a folder on disk."""
    folder = tempfile.mkdtemp(prefix="ropewalk-offload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"device_map": "auto", "offload_folder": folder}


def seated(model: Any) -> Any:
    """Let ``model.device`` be where the inputs go, of a model that accelerate has spread.

    transformers says where the first parameter is, and one that is offloaded is nowhere ("meta").
    """
    hook = getattr(model, "_hf_hook", None)
    if hook is not None:  # there is none where one device holds everything
        kind, place = type(model), torch.device(hook.execution_device)
        named = {"device": property(lambda _: place), "__module__": kind.__module__}
        model.__class__ = type(kind.__name__, (kind,), named)
    return model
