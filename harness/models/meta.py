"""Build a model from its config alone, without memory for its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import AutoModelForCausalLM
from transformers.quantizers.auto import get_hf_quantizer

from harness.errors import UserError
from harness.hub import attempt, attempting

MOST_MODULES = 150_000  # the largest mixtures of experts have 100,000


def without_weights(config: Any, *, trust_remote_code: bool) -> Any:
    """Build a model in eval mode, without its weights; raise UserError for a bad config."""
    build, options = AutoModelForCausalLM.from_config, {"trust_remote_code": trust_remote_code}
    with torch.device("meta"), bounded(config.model_type):
        return attempt(
            "config", f"this {config.model_type}", lambda: build(config, **options).eval()
        )


@contextmanager
def bounded(kind: str) -> Iterator[None]:
    """Raise UserError where a model has more modules than any real one."""
    count = 0

    def add(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > MOST_MODULES:
            raise UserError(
                f"the config of this {kind} defines more than {MOST_MODULES:,} modules."
            )

    hook = register_module_module_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()


def quantizer_of(config: Any, device_map: str | None) -> Any:
    """Return the library's quantizer of a config; raise what it raises without its package."""
    given = deepcopy(config)  # it changes the config
    return get_hf_quantizer(given, None, device_map, weights_only=True, user_agent={})[0]


def weight_bytes(config: Any, dtype: torch.dtype, trust_remote_code: bool) -> int:
    """Return the bytes of a model's weights in memory, quantised ones as their library holds them.

    Where that library is not installed, as on a machine that only gives work to others, they count
    in full.
    """
    model = without_weights(config, trust_remote_code=trust_remote_code)
    held: list[tuple[str, torch.Tensor]] = [*model.named_parameters()]
    quantizer: Any = None
    if getattr(config, "quantization_config", None) is not None:
        named = attempting("weights", f"this {config.model_type}")
        with named, suppress(ImportError), torch.device("meta"):
            quantizer = quantizer_of(config, None)
            quantizer.preprocess_model(model, device_map=None)
            held = [*model.named_parameters(), *model.named_buffers()]

    def size(name: str, one: torch.Tensor) -> float:
        if quantizer is not None and quantizer.param_needs_quantization(model, name):
            packed = quantizer.quantized_element_size
            return one.element_size() if packed is None else float(packed)
        return dtype.itemsize if one.is_floating_point() else one.element_size()

    return int(sum(one.numel() * size(name, one) for name, one in held))
