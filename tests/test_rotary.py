"""The patch against transformers' own scaled models; identity, restoration and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from harness.errors import UserError
from harness.patching.config import rope_of
from harness.patching.frequencies import PatchedRotary, check_geometry, rotary_name
from harness.patching.patch import patched
from scaling import dynamic_ntk, llama3, native, none, ntk, pi, yarn
from scaling.types import Frequencies, Rope
from tests.tiny import FAMILIES, WINDOW, tiny_config

LENGTH = 3 * WINDOW
TOKENS = (torch.arange(LENGTH)[None] * 7919) % 256 + 1
NATIVE = {
    "linear": ({"factor": 4.0}, lambda rope: pi.frequencies(rope, LENGTH, factor=4)),
    "yarn": ({"factor": 4.0}, lambda rope: yarn.frequencies(rope, LENGTH, factor=4)),
    "llama3": (
        {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        lambda rope: llama3.frequencies(rope, LENGTH, factor=4),
    ),
    "dynamic": ({"factor": 2.0}, lambda rope: dynamic_ntk.frequencies(rope, LENGTH, factor=2)),
}


def build(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(family, **changes)).eval()


def scaled(family: str, kind: str) -> Any:
    """Return the same weights with the library's own scaling of a type."""
    plain = dict(tiny_config(family).rope_parameters)
    extra = {} if kind in ("linear", "dynamic") else {"original_max_position_embeddings": WINDOW}
    parameters = {**plain, **NATIVE[kind][0], **extra, "rope_type": kind}
    return build(family, rope_parameters=parameters)


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=TOKENS, use_cache=False).logits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"),
    [*(("llama", kind) for kind in NATIVE), *((f, "llama3") for f in FAMILIES if f != "llama")],
)
def test_a_patched_model_is_the_librarys_own_scaled_model(family: str, kind: str) -> None:
    """The same formula through the patch gives the logits of transformers' type, bit for bit.

    Its dynamic type takes the length from a float32 tensor: there to 1e-3 of the logits' spread.
    """
    model, wanted = build(family), logits(scaled(family, kind))
    plain = logits(model)
    with patched(model, NATIVE[kind][1](rope_of(model.config))):
        found = logits(model)
    if kind == "dynamic":
        torch.testing.assert_close(found, wanted, rtol=0, atol=float(1e-3 * wanted.std()))
    else:
        assert torch.equal(found, wanted)
    assert (found - plain).abs().max() > 1e-2 * plain.std()


def test_the_identity_changes_no_bit_and_leaving_restores_every_bit() -> None:
    """Plain frequencies are the unpatched model; after a strong patch it is itself again.

    Of all families: test_families.py.
    """
    model = build("llama")
    before, module = logits(model), model.get_submodule(rotary_name(model))
    rope = rope_of(model.config)
    with patched(model, none.frequencies(rope, LENGTH)):
        assert torch.equal(logits(model), before)
    with patched(model, ntk.frequencies(rope, LENGTH, factor=8)):
        assert not torch.equal(logits(model), before)
    assert torch.equal(logits(model), before)
    assert model.get_submodule(rotary_name(model)) is module


def test_an_error_inside_restores_the_model() -> None:
    """Whatever is raised while patched, the model leaves as it came."""
    model = build("llama")
    before = logits(model)
    with (
        pytest.raises(RuntimeError, match="inside"),
        patched(model, pi.frequencies(rope_of(model.config), LENGTH, factor=4)),
    ):
        raise RuntimeError("inside")
    assert torch.equal(logits(model), before)


def test_the_same_frequencies_give_the_same_bits_whatever_ran_before() -> None:
    """A sweep's order does not matter, nor does a checkpoint's own sticky dynamic type."""
    model = scaled("llama", "dynamic")
    rope = rope_of(model.config)
    first, second = pi.frequencies(rope, LENGTH), ntk.frequencies(rope, LENGTH)
    found = {}
    for order in ((first, second), (second, first)):
        for frequencies in order:
            with patched(model, frequencies):
                found.setdefault(frequencies.fingerprint, []).append(logits(model))
    assert all(torch.equal(one, other) for one, other in found.values())


def test_frequencies_stay_float32_in_a_model_cast_to_bfloat16() -> None:
    """A cast model loses its own frequencies to rounding; a patched one has exact angles."""
    model = build("llama").to(torch.bfloat16)
    module = model.get_submodule(rotary_name(model))
    assert module.inv_freq.dtype == torch.bfloat16
    rope = rope_of(model.config)
    with patched(model, none.frequencies(rope, LENGTH)):
        cos, _ = model.get_submodule(rotary_name_inside(model))(
            torch.zeros(1, dtype=torch.float32), torch.tensor([[8191]])
        )
    wanted = (8191 * rope.inv_freq()).cos()
    torch.testing.assert_close(cos[0, 0, : len(wanted)], wanted, rtol=0, atol=1e-6)


def rotary_name_inside(model: Any) -> str:
    return next(n for n, m in model.named_modules() if isinstance(m, PatchedRotary))


def test_patches_do_not_nest() -> None:
    """A second patch over a first is refused, and the first goes on."""
    model = build("llama")
    frequencies = pi.frequencies(rope_of(model.config), LENGTH, factor=2)
    with patched(model, frequencies):
        inside = logits(model)
        with pytest.raises(UserError, match="patched already"), patched(model, frequencies):
            pass
        assert torch.equal(logits(model), inside)


def test_a_model_that_ignores_its_rotary_module_is_refused() -> None:
    """Frequencies that do not reach the output are never measured as if they did."""
    model = build("llama")
    module = model.model.rotary_emb
    fixed = module(torch.zeros(1, 1, 1), torch.arange(LENGTH)[None])

    class Deaf(nn.Module):
        def forward(self, _: torch.Tensor, position_ids: torch.Tensor) -> Any:
            return tuple(part[:, position_ids[0]] for part in fixed)

    module.forward = Deaf().forward
    with (
        pytest.raises(UserError, match="^LlamaForCausalLM: its output does not depend on its rot"),
        patched(model, pi.frequencies(rope_of(model.config), LENGTH, factor=2)),
    ):
        pass


def test_frequencies_of_another_shape_do_not_pass_the_check() -> None:
    """A row of another length cannot slip through broadcasting."""
    model = build("llama")
    one = Frequencies(torch.ones(1))
    with pytest.raises(UserError, match="rotates 8 channel pairs, got 1 freq"), patched(model, one):
        pass
    assert rotary_name(model) == "model.rotary_emb"


def test_what_has_no_rotary_embedding_is_refused_by_name() -> None:
    """GPT-2 is refused in words, before and after its weights are read."""
    gpt2 = GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=20)
    with pytest.raises(UserError, match="^gpt2 models have no rotary embedding"):
        rope_of(gpt2)
    with pytest.raises(UserError, match="^GPT2LMHeadModel has 0 rotary modules"):
        rotary_name(GPT2LMHeadModel(gpt2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((f, kind) for f in FAMILIES for kind in ("default", "yarn")),
        *(("llama", kind) for kind in NATIVE if kind != "yarn"),
    ],
)
def test_the_geometry_read_from_the_config_is_the_loaded_models(family: str, kind: str) -> None:
    """Base, rotary dimension, window and shipped scaling are what the loaded module uses."""
    model = build(family) if kind == "default" else scaled(family, kind)
    rope = rope_of(model.config)
    check_geometry(model, rope)
    assert rope.trained_length == WINDOW
    if kind not in ("default", "dynamic"):
        with patched(model, native.frequencies(rope, LENGTH)):
            inside = logits(model)
        assert torch.equal(inside, logits(model))


def test_a_geometry_that_is_not_the_models_is_refused() -> None:
    """A base that the loaded model does not use stops the run."""
    model = build("llama")
    with pytest.raises(UserError, match="not those its config describes"):
        check_geometry(model, Rope(16, 500_000.0, WINDOW))


def test_the_trained_length_is_the_original_window_of_a_stretched_checkpoint() -> None:
    """A checkpoint that ships yarn was pretrained at its original length, not at its maximum."""
    parameters = {
        "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0,
        "original_max_position_embeddings": WINDOW,
    }  # fmt: skip
    config = tiny_config("llama", rope_parameters=parameters, max_position_embeddings=4 * WINDOW)
    assert rope_of(config).trained_length == WINDOW
