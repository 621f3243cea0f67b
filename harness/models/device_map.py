"""Spread a model larger than one device, by accelerate, and find the device of its inputs."""

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
FRESH = 60  # seconds in which a new folder may not be locked yet


def check_whole(device_map: str | None, device: str) -> None:
    """Raise UserError for a device beside a device map, which uses all devices."""
    if device_map and device != "auto":
        raise UserError(f"--device-map {device_map} uses every device; leave --device out.")


def spread() -> dict[str, Any]:
    """Return options with which from_pretrained fills GPUs, then memory, then a folder on disk.

    The folder is removed at the end of the process; after a kill, by the next process.
    """
    _remove_left()
    folder = tempfile.mkdtemp(prefix=PREFIX)
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)  # locked as long as the process lives
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"device_map": "auto", "offload_folder": folder}


def _remove_left() -> None:
    """Remove this user's folders that no process has locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is locked, or another user's, or removed
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(handle)
                if found.st_uid == os.getuid() and time.time() - found.st_mtime > FRESH:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(handle)


def with_input_device(model: Any) -> Any:
    """Set ``model.device`` to the device of the inputs, of a model that accelerate has spread.

    transformers gives the device of the first parameter; an offloaded one is on "meta".
    """
    hook = getattr(model, "_hf_hook", None)
    if hook is not None:  # None where one device has everything
        kind, place = type(model), torch.device(hook.execution_device)
        named = {"device": property(lambda _: place), "__module__": kind.__module__}
        model.__class__ = type(kind.__name__, (kind,), named)
    return model
