"""What a user may exchange in a model for speed: compiled layers, and FlashAttention-4."""

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

from ropewalk.harness.engine.sdpa import flash
from ropewalk.harness.engine.structure import NotShareableError, decoder_layers, language_model
from ropewalk.harness.errors import UserError

COMPILERS = ("c++", "g++", "clang++")
NAME, PACKAGE = "FA4", "flash_attn"  # in PyTorch's registry, and where its package is
CAPABLE = 9, 10  # major compute capabilities that it runs on: H100 and H200, B200


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
        layers = decoder_layers(language_model(model))
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


def check_flash4(device: str, dtype: str) -> None:
    """Raise UserError where FlashAttention-4 cannot compute the attention of this dtype."""
    place = torch.device(device)
    if place.type != "cuda" or torch.cuda.get_device_capability(place)[0] not in CAPABLE:
        raise UserError(
            f"--attention flash4 needs an H100, H200 or B200, and the device is {device}; leave"
            " --attention out."
        )
    if dtype == "float32":
        raise UserError(
            "--attention flash4 needs 16 bits, and the model is in float32; add --dtype bfloat16,"
            " or leave --attention out."
        )
    known: list[str] = getattr(attention, "list_flash_attention_impls", list)()
    if NAME not in known or not (find_spec(PACKAGE) and find_spec(f"{PACKAGE}.cute")):
        raise UserError(
            "--attention flash4 needs PyTorch 2.13 and the package flash-attn-4; install them, or"
            " leave --attention out."
        )


@contextmanager
def flash4(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Let the flash operator run FlashAttention-4 until the end of the block.

    Raises UserError where its rows see other keys than their windows say.
    """
    attention.activate_flash_attention_impl(NAME)
    try:
        _check_windows(device, dtype)
        yield
    finally:
        attention.restore_flash_attention_impl()


@contextmanager
def flash2() -> Iterator[None]:
    """Let the operator run FlashAttention-2, which alone splits the keys of a single row."""
    active = getattr(attention, "current_flash_attention_impl", lambda: None)()
    if active:
        attention.restore_flash_attention_impl()
    try:
        yield
    finally:
        if active:
            attention.activate_flash_attention_impl(active)


def _check_windows(device: torch.device, dtype: torch.dtype) -> None:
    """Compare which keys the rows of the flash operator see to the rule of ``sdpa.flash``.

    Scores are zero and values one-hot: a row's output is positive at the keys that it sees.
    """
    rows, keys, width = 70, 120, 128
    query, key = (
        torch.zeros(1, 1, count, width, device=device, dtype=dtype) for count in (rows, keys)
    )
    value = torch.eye(keys, width, device=device, dtype=dtype)[None, None]
    behind = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)
    for left, right in ((-1, -1), (-1, 0), (30, 0), (keys - rows, -1)):
        seen = flash(query, key, value, 1.0, left, right)[0][0, 0, :, :keys].cpu() > 0
        wanted = ((behind <= left) | (left < 0)) & ((-behind <= right) | (right < 0))
        if not torch.equal(seen, wanted):
            raise UserError(
                "FlashAttention-4 attends to other keys than it is told; leave --attention out."
            )
