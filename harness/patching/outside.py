"""Set what a model scales outside its rotary embedding: all logits, and queries by position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ropewalk.harness.engine import language_model
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.frequencies import once, probe
from ropewalk.scaling import native
from ropewalk.scaling.types import Frequencies


@contextmanager
def scaled_outside(model: Any, wanted: Frequencies) -> Iterator[None]:
    """Let a model scale its logits and its queries by position as these frequencies say.

    What the checkpoint ships is replaced, and is back on exit. Raises UserError, naming the model,
    for logits that cannot be scaled.
    """
    rope, text = rope_of(model.config), model.config.get_text_config()
    shipped, temperature = native.logit_scale(rope), native.temperature(rope)
    kind = type(model).__name__
    if wanted.temperature not in (None, temperature):
        raise UserError(f"{kind} has no code that scales queries by {wanted.temperature}.")
    changes = wanted.logit_scale != shipped
    scales = {
        module: module.scaling
        for module in (language_model(model).modules() if changes else ())
        if hasattr(module, "layer_idx") and isinstance(getattr(module, "scaling", None), float)
    }
    parameters = text.rope_parameters

    def scale(factor: float) -> None:
        for module, own in scales.items():
            module.scaling = own / shipped * factor

    def verify() -> None:
        before = probe(model)
        scale(2 * shipped)
        if torch.equal(before, probe(model)):
            raise UserError(f"{kind} does not let its logits be scaled; not supported.")

    try:
        if changes:
            once(model, "logits", verify)
            scale(wanted.logit_scale)
        if temperature is not None and wanted.temperature is None:
            text.rope_parameters = {**parameters, native.BETA: 0.0}
        yield
    finally:
        text.rope_parameters = parameters
        for module, own in scales.items():
            module.scaling = own
