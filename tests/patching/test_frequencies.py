"""The patch against transformers' own scaled models; identity, restoration and refusals."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, Qwen2Config

from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.frequencies import check_geometry
from ropewalk.harness.patching.patch import patched
from ropewalk.scaling import dynamic_ntk, llama3, native, none, ntk, pi, yarn
from ropewalk.scaling.types import Rope
from tests.families import build
from tests.tiny import WINDOW, YARN, tiny_config

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


def scaled(kind: str) -> Any:
    """Return the same weights with the library's own scaling of a type."""
    plain = dict(tiny_config().rope_parameters)
    extra = {} if kind in ("linear", "dynamic") else {"original_max_position_embeddings": WINDOW}
    parameters = {**plain, **NATIVE[kind][0], **extra, "rope_type": kind}
    return build(tiny_config(rope_parameters=parameters))


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=TOKENS, use_cache=False).logits


@pytest.mark.parametrize("kind", NATIVE)
def test_a_patched_model_is_the_librarys_own_scaled_model(kind):
    """The formula through the patch, and native on a model that ships the type: the same bits."""
    model, own = build(tiny_config()), scaled(kind)
    rope = rope_of(own.config)
    check_geometry(own, rope)  # before the dynamic type changes itself
    assert rope.trained_length == WINDOW
    plain, wanted = logits(model), logits(own)
    with patched(model, NATIVE[kind][1](rope_of(model.config))):
        found = logits(model)
    if kind == "dynamic":
        torch.testing.assert_close(found, wanted, rtol=0, atol=float(1e-3 * wanted.std()))
    else:
        assert torch.equal(found, wanted)
        with patched(own, native.frequencies(rope, LENGTH)):
            assert torch.equal(logits(own), wanted)
    assert (found - plain).abs().max() > 1e-2 * plain.std()


def test_the_same_frequencies_give_the_same_bits_whatever_ran_before():
    """A sweep's order does not matter, nor does a checkpoint's own sticky dynamic type."""
    model = scaled("dynamic")
    rope = rope_of(model.config)
    first, second = pi.frequencies(rope, LENGTH), ntk.frequencies(rope, LENGTH)
    found = {}
    for order in ((first, second), (second, first)):
        for frequencies in order:
            with patched(model, frequencies):
                found.setdefault(frequencies.fingerprint, []).append(logits(model))
    assert all(torch.equal(one, other) for one, other in found.values())


def test_frequencies_stay_float32_in_a_model_cast_to_bfloat16():
    """A cast model loses its own frequencies to rounding; a patched one has exact angles."""
    model = build(tiny_config()).to(torch.bfloat16)
    assert model.model.rotary_emb.inv_freq.dtype == torch.bfloat16
    rope = rope_of(model.config)
    with patched(model, none.frequencies(rope, LENGTH)):
        cos, _ = model.model.rotary_emb(torch.zeros(1), torch.tensor([[8191]]))
    wanted = (8191 * rope.inv_freq()).cos()
    torch.testing.assert_close(cos[0, 0, : len(wanted)], wanted, rtol=0, atol=1e-6)


def test_patches_do_not_nest():
    model = build(tiny_config())
    frequencies = pi.frequencies(rope_of(model.config), LENGTH, factor=2)
    with patched(model, frequencies):
        inside = logits(model)
        with pytest.raises(UserError, match="patched already"), patched(model, frequencies):
            pass
        assert torch.equal(logits(model), inside)


def test_a_model_that_ignores_its_rotary_module_is_refused():
    """Frequencies that do not reach the output are never measured as if they did."""
    model = build(tiny_config())
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


def test_a_geometry_that_is_not_the_models_is_refused():
    model = build(tiny_config())
    for rope, found in (
        (Rope(16, 500_000.0, WINDOW), "channel pair 1 turns by 0.3162278 radians per token, by"),
        (Rope(8, 10_000.0, WINDOW), "it rotates 8 channel pairs, by the config 4"),
    ):
        with pytest.raises(UserError, match=f"not those its config describes .*{found}"):
            check_geometry(model, rope)


@pytest.mark.parametrize("top", [False, True])
def test_the_trained_length_is_the_original_window_of_a_stretched_checkpoint(top):
    """A checkpoint that ships yarn was pretrained at its original length, not at its maximum.

    transformers reads the key at the top of a config too, when it builds the model.
    """
    scaling, name = dict(YARN), "original_max_position_embeddings"
    more = {name: scaling.pop(name)} if top else {}
    window = 4 * WINDOW
    config = tiny_config("llama", rope_parameters=scaling, max_position_embeddings=window, **more)
    rope = rope_of(config)
    assert rope.trained_length == WINDOW
    check_geometry(build(config), rope)


def test_the_trained_length_of_command_r_is_its_model_max_length():
    """Its config gives 8192 as max_position_embeddings; llama.cpp and vLLM read the other key."""
    windows = {"max_position_embeddings": 8192, "model_max_length": 131_072}
    assert rope_of(tiny_config("cohere", **windows)).trained_length == 131_072
    assert rope_of(tiny_config("llama", **windows)).trained_length == 8192
    assert rope_of(tiny_config("cohere")).trained_length == WINDOW  # Aya 23 has one key


@pytest.mark.parametrize("value", ["1e4", None, [64], float("nan")])
def test_a_config_whose_geometry_is_no_number_is_refused(value):
    config = LlamaConfig(hidden_size=32, num_attention_heads=2)
    config.rope_parameters = {**config.rope_parameters, "rope_theta": value}
    with pytest.raises(UserError, match="must be a number, the config gives"):
        rope_of(config)


def test_a_checkpoint_for_dual_chunk_attention_was_trained_at_its_original_length():
    """Qwen2.5-1M: 262,144 tokens; its maximum is the length at which it is served."""
    table = {
        "chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144,
    }  # fmt: skip
    config = Qwen2Config(max_position_embeddings=1_010_000, dual_chunk_attention_config=table)
    rope = rope_of(config)
    assert rope.trained_length == 262_144
    assert rope.stretch(1_010_000) == 1_010_000 / 262_144
    assert native.dual_chunk_options(rope) == {"chunk": 253_952, "largest": 262_144}
    assert native.ships(rope)
