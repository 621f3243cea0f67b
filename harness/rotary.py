"""The one place that knows how Hugging Face models hold their rotary embedding, and patches it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from harness.errors import UserError
from scaling import native
from scaling._types import Frequencies, Rope

PROBE_LENGTH = 16  # tokens of the short prompt on which a patch is verified
PROBE_POSITIONS = (0, 1, 2, 7, 100, 65_536)


def rope_of(config: Any) -> Rope:
    """Read the rotary geometry from a model's config alone.

    Raises UserError naming the field and the model type where something is missing; no physical
    quantity is guessed.
    """
    config = config.get_text_config()
    kind = config.model_type
    shipped = getattr(config, "rope_parameters", None)
    if not shipped:
        message = f"{kind} models have no rotary embedding (no rope_parameters in the config)."
        raise UserError(message)
    if "rope_theta" not in shipped:
        slots = ", ".join(map(str, shipped))
        message = f"{kind} models have a rotary embedding per layer type ({slots}): not supported."
        raise UserError(message)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotary_dim = int(head_dim * shipped.get("partial_rotary_factor", 1.0))
    if rotary_dim < 2 or rotary_dim % 2:
        message = f"{kind}: rotary_dim must be even and at least 2, the config gives {rotary_dim}."
        raise UserError(message)
    trained = _trained_length(config, shipped)
    given = dict(shipped)
    if given.get("rope_type") == "longrope" and given.get("factor") is None:
        # transformers' own rule where a checkpoint names only its two windows
        given["factor"] = config.max_position_embeddings / trained
    return Rope(rotary_dim, float(shipped["rope_theta"]), trained, given)


def _trained_length(config: Any, shipped: Mapping[str, Any]) -> int:
    """Return the window of pretraining in tokens, not the one a shipped scaling stretches it to.

    transformers' ``dynamic`` type alone scales from max_position_embeddings.
    """
    original = shipped.get("original_max_position_embeddings")
    if original is None or shipped.get("rope_type") == "dynamic":
        original = getattr(config, "max_position_embeddings", None)
    if not original:
        message = f"{config.model_type}: the config has no max_position_embeddings."
        raise UserError(message)
    return int(original)


class PatchedRotary(nn.Module):
    """Delegates to a model's own rotary module after putting its own frequencies into it.

    The layout (half-split, interleaved, partial) stays the model's. The frequencies are float32
    and follow the input's device, even where the model was cast to another dtype. The class name
    must not contain "RotaryEmbedding": transformers re-initializes such modules.
    """

    def __init__(self, inner: nn.Module, frequencies: Frequencies) -> None:
        """Hold the model's own module and the frequencies that replace its own."""
        super().__init__()
        self.inner = inner
        self.frequencies = frequencies

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return what the model's own module makes of these frequencies."""
        own: Any = self.inner
        own.inv_freq = self.frequencies.inv_freq.to(x.device)
        own.attention_scaling = self.frequencies.attention_factor
        own.rope_type = "default"  # keeps transformers from recomputing by length
        return own(x, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Delegate whatever else the model reads from its rotary module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


def rotary_name(model: nn.Module) -> str:
    """Return the name of the model's one rotary module.

    Raises UserError where there is none, several, one patched already, or one of a shape that
    is not understood.
    """
    if any(isinstance(module, PatchedRotary) for module in model.modules()):
        message = "the model is patched already; patches do not nest."
        raise UserError(message)
    found: list[str] = [
        n for n, m in model.named_modules() if type(m).__name__.endswith("RotaryEmbedding")
    ]
    kind = type(model).__name__
    if len(found) != 1:
        message = f"{kind} has {len(found)} rotary modules ({', '.join(found)}); one is supported."
        raise UserError(message)
    own = model.get_submodule(found[0])
    missing = [n for n in ("inv_freq", "attention_scaling", "rope_type") if not hasattr(own, n)]
    if missing:
        message = f"the rotary module of {kind} has no {', '.join(missing)}; it cannot be patched."
        raise UserError(message)
    return found[0]


@contextmanager
def patched(model: Any, frequencies: Frequencies) -> Iterator[None]:
    """Run a loaded causal language model with these frequencies; restore it bit for bit on exit.

    Three checks on every entry, each a UserError naming the model: the module gives exactly the
    angles asked for; the model's own frequencies put through the patch change no bit of its
    output; frequencies of zero do change it, so the output depends on what is patched.
    """
    name = rotary_name(model)
    own: Any = model.get_submodule(name)
    saved = {key: getattr(own, key) for key in ("inv_freq", "attention_scaling", "rope_type")}
    given, wanted = len(frequencies.inv_freq), len(saved["inv_freq"])
    if given != wanted:
        message = f"{type(model).__name__} rotates {wanted} channel pairs, got {given} frequencies."
        raise UserError(message)
    try:
        _verify(model, name, saved)
        model.set_submodule(name, PatchedRotary(own, frequencies))
        _verify_angles(model, name, frequencies)
        yield
    finally:
        for key, value in saved.items():
            setattr(own, key, value)
        model.set_submodule(name, own)


def _verify(model: Any, name: str, saved: dict[str, Any]) -> None:
    """Check on the model's own output that the patch is an identity, and that it has an effect."""
    own: Any = model.get_submodule(name)
    before = _probe(model)
    if not bool(torch.isfinite(before).all()):
        message = f"{type(model).__name__} gives no finite logits for a short prompt; refused."
        raise UserError(message)
    as_is = Frequencies(saved["inv_freq"].float().cpu(), float(saved["attention_scaling"]))
    zero = Frequencies(torch.zeros_like(as_is.inv_freq))
    outputs = []
    for frequencies in (as_is, zero):
        try:
            model.set_submodule(name, PatchedRotary(own, frequencies))
            outputs.append(_probe(model))
        finally:
            model.set_submodule(name, own)
            for key, value in saved.items():
                setattr(own, key, value)
    kind = type(model).__name__
    if saved["inv_freq"].dtype == torch.float32 and not torch.equal(outputs[0], before):
        message = f"{kind}: its own frequencies put through the patch change its output; refused."
        raise UserError(message)
    if torch.equal(outputs[1], before):
        message = f"{kind}: its output does not depend on its rotary module's frequencies; refused."
        raise UserError(message)


@torch.inference_mode()
def _probe(model: Any) -> torch.Tensor:
    """Return the logits of a short prompt of different tokens."""
    size = min(PROBE_LENGTH, model.config.get_text_config().vocab_size)
    tokens = torch.arange(size, device=model.device)[None]
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


@torch.inference_mode()
def _verify_angles(model: Any, name: str, frequencies: Frequencies) -> None:
    """Check that the patched module returns cos and sin of exactly the angles asked for.

    Layouts differ in how often and in which order a pair's angle appears, so the values are
    compared sorted.
    """
    module = model.get_submodule(name)
    device = model.device
    positions = torch.tensor([PROBE_POSITIONS], device=device)
    given = module(torch.zeros(1, 1, 1, dtype=torch.float32, device=device), positions)
    angles = positions[0, :, None].float().cpu() * frequencies.inv_freq
    for values, function in zip(given, (torch.cos, torch.sin), strict=True):
        wanted = function(angles) * frequencies.attention_factor
        copies = values.shape[-1] // wanted.shape[-1]
        expected = wanted.repeat_interleave(copies, dim=-1).sort(-1).values
        found = values[0].float().cpu().sort(-1).values
        if found.shape != expected.shape or not torch.allclose(found, expected, atol=1e-4):
            message = (
                f"{type(model).__name__}: its rotary module does not give the angles asked for."
            )
            raise UserError(message)


def check_geometry(model: Any, rope: Rope) -> None:
    """Check that what was read from the config is what the loaded model uses.

    The frequencies the checkpoint ships, computed by our own formula inside the trained window,
    must be those in the model's rotary module. Raises UserError with the difference.
    """
    own: Any = model.get_submodule(rotary_name(model))
    ours = native.frequencies(rope, rope.trained_length)
    theirs = own.inv_freq.float().cpu()
    tolerance = 1e-6 if own.inv_freq.dtype == torch.float32 else 1e-2
    same = theirs.shape == ours.inv_freq.shape and torch.allclose(
        theirs, ours.inv_freq, rtol=tolerance, atol=0.0
    )
    if not same or abs(float(own.attention_scaling) - ours.attention_factor) > tolerance:
        message = (
            f"{type(model).__name__}: the rotary frequencies of the loaded model are not those its"
            f" config describes ({rope}); refused."
        )
        raise UserError(message)
