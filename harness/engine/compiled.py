"""Compile the norms and the MLPs of a model's layers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from ropewalk.harness.engine.structure import NotShareableError, decoder_layers, language_model
from ropewalk.harness.errors import UserError

COMPILERS = ("c++", "g++", "clang++")


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
