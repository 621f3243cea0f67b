"""Run a model with moved relative positions, band by band."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.engine import PLAIN
from harness.errors import UserError
from harness.patching.banded_attention import BandedAttention
from harness.patching.channel_layout import attending, layouts
from harness.patching.frequencies import as_is, check_angles, once, placed, rotary_name
from harness.patching.self_check import Layouts, prove
from scaling.types import Bands, Frequencies


@contextmanager
def banded(model: Any, bands: Bands) -> Iterator[None]:
    """Run a loaded causal language model with these bands; restore it bit for bit on exit.

    A band is a set of query-key pairs with the positions they are rotated to. The rotary module
    does not rotate, so keys are cached unrotated; the attention rotates them. Layers without a
    rotary embedding, and the sliding layers of a model with a rotary embedding per layer type, are
    not changed. Raises UserError, naming the model, where the model's own frequencies in bands do
    not give its own attention, layer by layer on a short prompt. That is proved once per model.
    """
    name = rotary_name(model)
    own = as_is(model.get_submodule(name)).inv_freq
    if any(len(band.frequencies.inv_freq) != len(own) for band in bands.bands):
        raise UserError(
            f"{type(model).__name__} rotates {len(own)} channel pairs, the bands another number."
        )
    found = once(model, "bands", lambda: _proved(model, name))
    at_rest = Frequencies(torch.zeros_like(own))
    attention = BandedAttention(bands, found)
    if model.config._attn_implementation == PLAIN:
        attention.kernel = attention.attend
    with placed(model, name, at_rest), attending(model, attention, attention.mask):
        check_angles(model, name, at_rest)
        yield


def _proved(model: Any, name: str) -> Layouts:
    """Return the layout of each layer, checked against the model's own attention."""
    found = layouts(model)
    prove(model, name, found)
    return found
