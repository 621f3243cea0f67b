"""Let PyTorch's flash operator run FlashAttention-3, which an optional package has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch.nn import attention

from harness.errors import UserError

NAME = "FA3"  # in PyTorch's registry
PACKAGE = "flash_attn_interface"  # the module that FlashAttention-3 installs
HOPPER = 9  # major compute capability of H100 and H200, the only one that it runs on


def check_flash3(device: str, dtype: str) -> None:
    """Raise UserError where FlashAttention-3 cannot compute the attention of this dtype."""
    place = torch.device(device)
    if place.type != "cuda" or torch.cuda.get_device_capability(place)[0] != HOPPER:
        raise UserError(
            f"--attention flash3 needs an H100 or H200, and the device is {device}; leave"
            " --attention out."
        )
    if dtype == "float32":
        raise UserError(
            "--attention flash3 needs 16 bits, and the model is in float32; add --dtype bfloat16,"
            " or leave --attention out."
        )
    known: list[str] = getattr(attention, "list_flash_attention_impls", list)()
    if NAME not in known:
        raise UserError(
            f"--attention flash3 needs a later PyTorch than {torch.__version__}, which cannot"
            " activate FlashAttention-3; install PyTorch 2.13, or leave --attention out."
        )
    if find_spec(PACKAGE) is None:
        raise UserError(
            f"--attention flash3 needs FlashAttention-3, whose module is {PACKAGE}; install it, or"
            " leave --attention out."
        )


@contextmanager
def flash3() -> Iterator[None]:
    """Let the flash operator run FlashAttention-3 until the end of the block.

    Its causality counts from the last row and key on, as that of FlashAttention-2 does.
    """
    attention.activate_flash_attention_impl(NAME)
    try:
        yield
    finally:
        attention.restore_flash_attention_impl()
