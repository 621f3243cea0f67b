"""A model larger than one device: accelerate places its layers, here is where its inputs go."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from harness.errors import UserError

PREFIX = "ropewalk-offload-"  # of a folder for layers on disk
FRESH = 60  # seconds in which a folder may have been made and not be held yet


def check_whole(device_map: str | None, device: str) -> None:
    """Raise UserError for a device beside a map, which takes all."""
    if device_map and device != "auto":
        message = f"--device-map {device_map} takes every device there is; leave --device out."
        raise UserError(message)


def spread() -> dict[str, Any]:
    """Return how from_pretrained spreads a model over GPUs, then memory, then a folder on disk.

    The folder is removed at the end of the process; of one that was killed, by the next one.
    """
    _remove_left()
    folder = tempfile.mkdtemp(prefix=PREFIX)
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)  # held as long as the process lives
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"device_map": "auto", "offload_folder": folder}


def _remove_left() -> None:
    """Remove this user's folders that no process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is held, or another's, or gone by now
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(handle)
                if found.st_uid == os.getuid() and time.time() - found.st_mtime > FRESH:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(handle)


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
