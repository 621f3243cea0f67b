"""Run a model with frequencies for each of its decoder layers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from harness.engine import NotShareableError, layers_of, trunk_name
from harness.errors import UserError
from harness.patching.config import FULL
from harness.patching.frequencies import (
    PatchedRotary,
    as_is,
    once,
    placed,
    probe,
    rotary_name,
    with_frequencies,
)
from scaling.types import Frequencies, PerLayerFrequencies


@contextmanager
def layered(model: Any, found: PerLayerFrequencies) -> Iterator[None]:
    """Run a loaded causal language model with these frequencies; restore it bit for bit on exit.

    The model computes cos and sin once, for all layers; each layer gets its own in their place.
    Checks each layer's frequencies as ``with_frequencies`` does, and once per model that no layer
    rotates by other cos and sin than those put in their place. Raises UserError, naming the model,
    where one does.
    """
    for one in {one.fingerprint: one for one in found.layers}.values():
        with with_frequencies(model, one):
            pass
    name = rotary_name(model)
    once(model, "layers", lambda: _prove(model, name))
    with placed(model, name, found.layers[0]), _replaced(model, name, found):
        yield


@contextmanager
def _replaced(model: Any, name: str, found: PerLayerFrequencies) -> Iterator[None]:
    """Replace what the rotary module returned by each layer's own, before the layer runs."""
    rotary, kind = model.get_submodule(name), type(model).__name__
    try:
        layers = layers_of(getattr(model, trunk_name(model)))
    except NotShareableError:
        layers = []
    if len(layers) != len(found.layers) or _shares_keys(model):
        raise UserError(
            f"{kind} cannot have frequencies for each layer: its layers are not one list of "
            f"{len(found.layers)} that each rotate their own keys."
        )
    last = threading.local()

    def remember(_: Any, args: Any, kwargs: Any, output: Any) -> None:
        if [v for v in (*args, *kwargs.values()) if isinstance(v, str)] in ([], [FULL]):
            first = args[0].new_zeros(1)  # of the hidden states only dtype and device are read
            last.call = (first, *args[1:]), kwargs, output

    def replace(own: PatchedRotary, _: Any, args: Any, kwargs: Any) -> Any:
        positions, options, given = last.call
        swapped = own.forward(*positions, **options)
        return (
            tuple(swapped if value is given else value for value in args),
            {key: swapped if value is given else value for key, value in kwargs.items()},
        )

    with ExitStack() as stack:
        handle = rotary.register_forward_hook(remember, with_kwargs=True)
        stack.callback(handle.remove)
        for layer, one in zip(layers, found.layers, strict=True):
            hook = partial(replace, PatchedRotary(rotary.inner, one))
            handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield


def _shares_keys(model: Any) -> bool:
    """Return whether some layers use the rotated keys of others."""
    return bool(getattr(model.config.get_text_config(), "num_kv_shared_layers", 0))


def _prove(model: Any, name: str) -> None:
    """Check that a model whose layers do not rotate is the model without rotation, bit for bit."""
    own = as_is(model.get_submodule(name))
    none = Frequencies(torch.zeros_like(own.inv_freq))
    with placed(model, name, none):
        wanted = probe(model)
    count = model.config.get_text_config().num_hidden_layers
    with placed(model, name, own), _replaced(model, name, PerLayerFrequencies((none,) * count)):
        found = probe(model)
    if not torch.equal(found, wanted):
        raise UserError(
            f"{type(model).__name__}: some layer does not use the cos and sin given to it."
        )
