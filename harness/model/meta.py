"""Build a model from its config alone, without memory for its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import AutoModelForCausalLM

from harness.attempt import attempt
from harness.errors import UserError

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
            message = f"the config of this {kind} defines more than {MOST_MODULES:,} modules."
            raise UserError(message)

    hook = register_module_module_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()
