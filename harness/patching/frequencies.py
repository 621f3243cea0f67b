"""Run a Hugging Face model with other frequencies: the same in every layer, or each its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ropewalk.harness.engine import NotShareableError, decoder_layers, language_model
from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.patching.config import FULL
from ropewalk.harness.plugins import call
from ropewalk.scaling import native
from ropewalk.scaling.types import Frequencies, PerLayerFrequencies, Rope

T = TypeVar("T")
VERIFIED: WeakKeyDictionary[nn.Module, dict[str, tuple[Any, Any]]] = WeakKeyDictionary()
PROBE_LENGTH = 16  # tokens of the short prompt on which a patch is verified
PROBE_POSITIONS = (0, 1, 2, 7, 100, 65_536)


class PatchedRotary(nn.Module):
    """Delegates to a model's own rotary module after putting its own frequencies into it.

    The layout stays the model's. The frequencies are float32 on the input's device, whatever the
    model's dtype. Not named "…RotaryEmbedding": transformers re-initializes such modules.
    """

    def __init__(self, inner: nn.Module, frequencies: Frequencies) -> None:
        super().__init__()
        self.inner = inner
        self.frequencies = frequencies
        self.placed: dict[torch.device, Tensor] = {}  # a copy would wait for the device

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return cos and sin of these frequencies, computed by the model's own module."""
        own: Any = self.inner
        inv_freq, attention_scaling, _ = _names(own)
        if x.device not in self.placed:
            self.placed[x.device] = self.frequencies.inv_freq.to(x.device)
        setattr(own, inv_freq, self.placed[x.device])
        setattr(own, attention_scaling, self.frequencies.attention_factor)
        kinds = own.rope_type  # "default" keeps transformers from recomputing by length
        own.rope_type = {**kinds, FULL: "default"} if isinstance(kinds, dict) else "default"
        return own(x, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


def _names(own: Any) -> tuple[str, str, str]:
    """Return the names of the attributes that are patched; with a slot per layer type, its own."""
    slot = f"{FULL}_" if isinstance(getattr(own, "rope_type", None), dict) else ""
    return f"{slot}inv_freq", f"{slot}attention_scaling", "rope_type"


def as_is(own: Any) -> Frequencies:
    """Return the frequencies in a rotary module."""
    inv_freq, attention_scaling, _ = _names(own)
    return Frequencies(getattr(own, inv_freq).float().cpu(), float(getattr(own, attention_scaling)))


def rotary_name(model: nn.Module) -> str:
    """Return the name of the one rotary module of a model's language model.

    Raises UserError where there is none or several, or one is patched already or has other fields.
    """
    if any(isinstance(module, PatchedRotary) for module in model.modules()):
        raise UserError("the model is patched already; patches do not nest.")
    inside = set(language_model(model).modules())
    rotary = [(n, m) for n, m in model.named_modules() if m in inside]
    names = [n for n, m in rotary if type(m).__name__.endswith("RotaryEmbedding")]
    kind = type(model).__name__
    if len(names) != 1:
        raise UserError(
            f"{kind} has {len(names)} rotary modules ({', '.join(names)}); one is supported."
        )
    own = model.get_submodule(names[0])
    missing = [n for n in _names(own) if not hasattr(own, n)]
    if missing:
        raise UserError(
            f"the rotary module of {kind} has no {', '.join(missing)}; it cannot be patched."
        )
    return str(names[0])


@contextmanager
def with_frequencies(model: Any, frequencies: Frequencies) -> Iterator[None]:
    """Run a loaded causal language model with these frequencies; restore it bit for bit on exit.

    Three checks raise a UserError that names the model. Once per model, its own frequencies put
    through the patch must leave its output bit-identical, and frequencies of zero must change it.
    On every entry, the module must give exactly the requested angles.
    """
    name = rotary_name(model)
    given, pairs = (len(f.inv_freq) for f in (frequencies, as_is(model.get_submodule(name))))
    if given != pairs:
        raise UserError(
            f"{type(model).__name__} rotates {pairs} channel pairs, got {given} frequencies."
        )
    once(model, "frequencies", lambda: _verify(model, name))
    with placed(model, name, frequencies):
        check_angles(model, name, frequencies)
        yield


def once(model: Any, kind: str, verify: Callable[[], T]) -> T:
    """Return the result of a verification, which runs once per model.

    It runs again after an error, and where the rotary module, the attention, the dtype or the
    device has changed.
    """
    own = model.get_submodule(rotary_name(model))
    attention = language_model(model).config._attn_implementation
    state = (own, attention, model.dtype, model.device)
    verified = VERIFIED.setdefault(model, {})
    if kind not in verified or verified[kind][0] != state:
        verified[kind] = (state, verify())
    result: T = verified[kind][1]
    return result


@contextmanager
def placed(model: Any, name: str, frequencies: Frequencies) -> Iterator[None]:
    """Put frequencies into the rotary module, and restore everything on exit."""
    own: Any = model.get_submodule(name)
    saved = {key: getattr(own, key) for key in _names(own)}
    try:
        model.set_submodule(name, PatchedRotary(own, frequencies))
        yield
    finally:
        for key, value in saved.items():
            setattr(own, key, value)
        model.set_submodule(name, own)


def _verify(model: Any, name: str) -> None:
    """Check on the model's output that the patch is exact and has an effect."""
    own: Any = model.get_submodule(name)
    kind = type(model).__name__
    try:
        before = probe(model)
    except Exception as error:
        raise UserError(
            f"{kind} cannot run a short prompt: {type(error).__name__}: {reason(error)}"
        ) from error
    if not bool(torch.isfinite(before).all()):
        raise UserError(f"{kind} gives no finite logits for a short prompt; not supported.")
    shipped, held = as_is(own), getattr(own, _names(own)[0])
    outputs = []
    for frequencies in (shipped, Frequencies(torch.zeros_like(shipped.inv_freq))):
        with placed(model, name, frequencies):
            outputs.append(probe(model))
    if held.dtype == torch.float32 and not torch.equal(outputs[0], before):
        raise UserError(
            f"{kind}: its own frequencies put through the patch change its output; not supported."
        )
    if torch.equal(outputs[1], before):
        raise UserError(
            f"{kind}: its output does not depend on its rotary frequencies; not supported."
        )


@torch.inference_mode()
def probe(model: Any, length: int = PROBE_LENGTH) -> Tensor:
    """Return the logits of a short prompt of different tokens."""
    size = min(length, model.config.get_text_config().vocab_size)
    tokens = torch.arange(size, device=model.device)[None]
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


@torch.inference_mode()
def check_angles(model: Any, name: str, frequencies: Frequencies) -> None:
    """Check that the patched module returns cos and sin of exactly the given angles.

    Layouts differ in how often and in which order a pair's angle appears, so the values are
    compared sorted.
    """
    module: Any = model.get_submodule(name)
    positions = torch.tensor([PROBE_POSITIONS], device=model.device)
    layer = {"layer_type": FULL} if isinstance(module.rope_type, dict) else {}
    tables = module(torch.zeros(1, dtype=torch.float32, device=model.device), positions, **layer)
    if isinstance(tables, Tensor):  # cos + i sin (Llama 4, DeepSeek V2)
        tables = tables.real, tables.imag
    angles = positions[0, :, None].float().cpu() * frequencies.inv_freq
    for values, function in zip(tables, (torch.cos, torch.sin), strict=True):
        expected = function(angles) * frequencies.attention_factor
        copies = values.shape[-1] // expected.shape[-1]
        expected = expected.repeat_interleave(copies, dim=-1).sort(-1).values
        actual = values[0].float().cpu().sort(-1).values
        if actual.shape != expected.shape or not torch.allclose(actual, expected, atol=1e-4):
            kind = type(model).__name__
            raise UserError(f"{kind}: its rotary module does not return the given angles.")


def check_geometry(model: Any, rope: Rope) -> None:
    """Check that what was read from the config is what the loaded model uses.

    The frequencies the checkpoint ships, by our own formula, must be those in its rotary module.
    """
    if not rope.rotary_dim:
        return
    own: Any = model.get_submodule(rotary_name(model))
    tolerance = 1e-6 if getattr(own, _names(own)[0]).dtype == torch.float32 else 1e-2
    check_described(type(model).__name__, as_is(own), rope, tolerance)


def check_described(kind: str, theirs: Frequencies, rope: Rope, tolerance: float = 1e-6) -> None:
    """Check that the frequencies of a model's rotary module are those read from its config."""
    ours = call("the checkpoint", lambda: native.frequencies(rope, 1))
    own, described = theirs.inv_freq, ours.inv_freq
    if len(own) != len(described):
        what = f"it rotates {len(own)} channel pairs, by the config {len(described)}"
    elif abs(theirs.attention_factor - ours.attention_factor) > tolerance:
        factors = theirs.attention_factor, ours.attention_factor
        what = "its attention factor is {:.7g}, by the config {:.7g}".format(*factors)
    else:
        wrong = (~torch.isclose(own, described, rtol=tolerance, atol=0.0)).nonzero()
        if not len(wrong):
            return
        at = int(wrong[0])
        what = f"channel pair {at} turns by {own[at]:.7g} radians per token, by the config"
        what += f" {described[at]:.7g}"
    form = rope.shipped.get("rope_type", "default")
    raise UserError(
        f"{kind}: its rotary frequencies are not those its config describes (rope_type {form!r}):"
        f" {what}. No scaling of it can be measured."
    )


@contextmanager
def layered(model: Any, rotation: PerLayerFrequencies) -> Iterator[None]:
    """Run a loaded causal language model with these frequencies; restore it bit for bit on exit.

    The model computes cos and sin once, for all layers; each layer gets its own in their place.
    Checks each layer's frequencies as ``with_frequencies`` does, and once per model that no layer
    rotates by other cos and sin than those put in their place. Raises UserError, naming the model,
    where one does.
    """
    for frequencies in {layer.fingerprint: layer for layer in rotation.layers}.values():
        with with_frequencies(model, frequencies):
            pass
    name = rotary_name(model)
    once(model, "layers", lambda: _verify_layers(model, name))
    with placed(model, name, rotation.layers[0]), _replaced(model, name, rotation.layers):
        yield


@contextmanager
def _replaced(model: Any, name: str, frequencies: Sequence[Frequencies]) -> Iterator[None]:
    """Replace what the rotary module returned by each layer's own, before the layer runs."""
    rotary, kind = model.get_submodule(name), type(model).__name__
    try:
        layers = decoder_layers(language_model(model))
    except NotShareableError:
        layers = []
    shared = getattr(model.config.get_text_config(), "num_kv_shared_layers", 0)
    if len(layers) != len(frequencies) or shared:
        raise UserError(
            f"{kind} cannot have frequencies for each layer: its layers are not one list of "
            f"{len(frequencies)} that each rotate their own keys."
        )
    last: Any = None  # positions, options and tables of the last call

    def remember(_: Any, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal last
        if [v for v in (*args, *kwargs.values()) if isinstance(v, str)] in ([], [FULL]):
            first = args[0].new_zeros(1)  # of the hidden states only dtype and device are read
            last = (first, *args[1:]), kwargs, output

    def replace(own: PatchedRotary, _: Any, args: Any, kwargs: Any) -> Any:
        positions, options, shared_tables = last
        tables = own.forward(*positions, **options)
        return (
            tuple(tables if value is shared_tables else value for value in args),
            {key: tables if value is shared_tables else value for key, value in kwargs.items()},
        )

    with ExitStack() as stack:
        handle = rotary.register_forward_hook(remember, with_kwargs=True)
        stack.callback(handle.remove)
        for layer, one in zip(layers, frequencies, strict=True):
            hook = partial(replace, PatchedRotary(rotary.inner, one))
            handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield


def _verify_layers(model: Any, name: str) -> None:
    """Check that a model whose layers do not rotate is the model without rotation, bit for bit."""
    own = as_is(model.get_submodule(name))
    none = Frequencies(torch.zeros_like(own.inv_freq))
    with placed(model, name, none):
        expected = probe(model)
    count = model.config.get_text_config().num_hidden_layers
    with placed(model, name, own), _replaced(model, name, [none] * count):
        actual = probe(model)
    if not torch.equal(actual, expected):
        raise UserError(
            f"{type(model).__name__}: some layer does not use the cos and sin given to it."
        )
