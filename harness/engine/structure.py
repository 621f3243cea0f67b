"""Find the parts of a causal language model, and replace its attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ropewalk.harness.errors import UserError


class NotShareableError(Exception):
    """The model's attention does something that a pack of runs cannot honour."""


def trunk_name(model: nn.Module) -> str:
    """Return the name of the child that turns tokens into hidden states.

    ``base_model`` and ``get_decoder()`` are not reliable over families; the only child that is a
    PreTrainedModel is. Raises UserError where there is not exactly one.
    """
    from transformers import PreTrainedModel  # with the model's code

    names = [name for name, child in model.named_children() if isinstance(child, PreTrainedModel)]
    if len(names) != 1:
        raise UserError(
            f"{type(model).__name__} is not a causal language model of one trunk and one head."
        )
    return names[0]


def language_model(model: Any) -> Any:
    """Return the module that turns tokens into hidden states.

    It is the trunk, and in the trunk of an image-text model the part with the config of the text.
    """
    from transformers import PreTrainedModel  # with the model's code

    trunk, text = getattr(model, trunk_name(model)), model.config.get_text_config()
    parts = [c for c in trunk.children() if isinstance(c, PreTrainedModel) and c.config is text]
    return parts[0] if parts and text is not model.config else trunk


def decoder_layers(trunk: nn.Module) -> list[nn.Module]:
    """Return the decoder layers in order; raise NotShareableError where they are not known."""
    from transformers.modeling_layers import GradientCheckpointingLayer  # with the model's code

    lists = [child for child in trunk.children() if isinstance(child, nn.ModuleList)]
    layers = [layer for layers in lists for layer in layers]
    if len(lists) != 1 or not all(
        isinstance(layer, GradientCheckpointingLayer) for layer in layers
    ):
        raise NotShareableError("layers")
    return layers


@contextmanager
def implementation(model: Any, name: str) -> Iterator[None]:
    """Run a model with the attention that is registered by this name; restore its own on exit."""
    trunk = language_model(model)
    before = trunk.config._attn_implementation
    try:
        trunk.set_attn_implementation(name)
        yield
    finally:
        trunk.set_attn_implementation(before)


@contextmanager
def attending(
    model: Any, name: str, attention: Callable[..., Any], mask: Callable[..., Any]
) -> Iterator[None]:
    """Run a model with this attention in every layer; restore its own on exit.

    transformers calls ``mask`` for what it hands to the attention as its mask. Both are registered
    by ``name``, in which no kernel's name may be.
    """
    from transformers import AttentionInterface, AttentionMaskInterface  # with the model's code

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    try:
        with implementation(model, name):
            yield
    finally:
        for interface in (AttentionInterface, AttentionMaskInterface):
            interface._global_mapping.pop(name, None)
