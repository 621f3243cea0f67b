"""What a user may exchange in a model for speed: compiled layers, and FlashAttention-3."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn import attention

from ropewalk.harness.engine.structure import NotShareableError, language_model, layers_of
from ropewalk.harness.errors import UserError

COMPILERS = ("c++", "g++", "clang++")
NAME = "FA3"  # in PyTorch's registry
PACKAGE = "flash_attn_interface"  # the module that FlashAttention-3 installs
HOPPER = 9  # major compute capability of H100 and H200, the only one that it runs on


def check_compiler(device: str) -> None:
    """Raise UserError where PyTorch has no compiler for this device."""
    if torch.device(device).type != "cpu":
        if find_spec("triton") is None:
            raise UserError(
                "--compile needs the package triton on a GPU; install it, or leave --compile out."
            )
    elif not any(map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS))):
        raise UserError(
            "--compile needs a C++ compiler on a CPU, and none of "
            f"{', '.join(COMPILERS)} is installed; install one, or leave --compile out."
        )


def compile_layers(model: Any) -> None:
    """Replace the norms and the MLPs of a model's decoder layers by compiled ones, for good.

    Layers of one class share one compiled function, for any number of rows. Attention is not
    compiled: it is one fused operator already, and the engine replaces it. Results differ by
    rounding from those of the model as it was.

    Raises UserError for a model whose layers are not known.
    """
    try:
        layers = layers_of(language_model(model))
    except NotShareableError as error:
        raise UserError(
            f"--compile does not know the layers of {type(model).__name__}; leave it out."
        ) from error
    functions: dict[type[nn.Module], Callable[..., Any]] = {}
    for layer in layers:
        for part in layer.children():
            kind = type(part)
            if any("Attention" in type(module).__name__ for module in part.modules()):
                continue
            if kind not in functions:
                functions[kind] = torch.compile(kind.forward, dynamic=True)
            part.forward = partial(functions[kind], part)


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
