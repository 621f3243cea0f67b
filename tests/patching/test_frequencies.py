"""The patch against transformers' own scaled models; identity, restoration and refusals."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    Qwen2Config,
)

from harness.errors import UserError
from harness.patching.config import rope_of
from harness.patching.frequencies import PatchedRotary, check_geometry, rotary_name
from harness.patching.patch import patched
from scaling import dynamic_ntk, llama3, native, none, ntk, pi, yarn
from scaling.types import Frequencies, Rope
from tests.families import build, each, tiny
from tests.tiny import FAMILIES, WINDOW, YARN, tiny_config

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


def plain_model(family: str, **changes: Any) -> Any:
    return build(tiny_config(family, **changes))


def scaled(family: str, kind: str) -> Any:
    """Return the same weights with the library's own scaling of a type."""
    plain = dict(tiny_config(family).rope_parameters)
    extra = {} if kind in ("linear", "dynamic") else {"original_max_position_embeddings": WINDOW}
    parameters = {**plain, **NATIVE[kind][0], **extra, "rope_type": kind}
    return plain_model(family, rope_parameters=parameters)


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=TOKENS, use_cache=False).logits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"),
    [*(("llama", kind) for kind in NATIVE), *((f, "llama3") for f in FAMILIES if f != "llama")],
)
def test_a_patched_model_is_the_librarys_own_scaled_model(family, kind):
    """The same formula through the patch gives the logits of transformers' type, bit for bit."""
    model, wanted = plain_model(family), logits(scaled(family, kind))
    plain = logits(model)
    with patched(model, NATIVE[kind][1](rope_of(model.config))):
        found = logits(model)
    if kind == "dynamic":
        torch.testing.assert_close(found, wanted, rtol=0, atol=float(1e-3 * wanted.std()))
    else:
        assert torch.equal(found, wanted)
    assert (found - plain).abs().max() > 1e-2 * plain.std()


def test_the_same_frequencies_give_the_same_bits_whatever_ran_before():
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


def test_frequencies_stay_float32_in_a_model_cast_to_bfloat16():
    """A cast model loses its own frequencies to rounding; a patched one has exact angles."""
    model = plain_model("llama").to(torch.bfloat16)
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


def test_patches_do_not_nest():
    model = plain_model("llama")
    frequencies = pi.frequencies(rope_of(model.config), LENGTH, factor=2)
    with patched(model, frequencies):
        inside = logits(model)
        with pytest.raises(UserError, match="patched already"), patched(model, frequencies):
            pass
        assert torch.equal(logits(model), inside)


def test_a_model_that_ignores_its_rotary_module_is_refused():
    """Frequencies that do not reach the output are never measured as if they did."""
    model = plain_model("llama")
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


def test_frequencies_of_another_shape_do_not_pass_the_check():
    model = plain_model("llama")
    one = Frequencies(torch.ones(1))
    with pytest.raises(UserError, match="rotates 8 channel pairs, got 1 freq"), patched(model, one):
        pass
    assert rotary_name(model) == "model.rotary_emb"


def test_what_has_no_rotary_embedding_is_refused_by_name():
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
def test_the_geometry_read_from_the_config_is_the_loaded_models(family, kind):
    model = plain_model(family) if kind == "default" else scaled(family, kind)
    rope = rope_of(model.config)
    check_geometry(model, rope)
    assert rope.trained_length == WINDOW
    if kind not in ("default", "dynamic"):
        with patched(model, native.frequencies(rope, LENGTH)):
            inside = logits(model)
        assert torch.equal(inside, logits(model))


def test_a_geometry_that_is_not_the_models_is_refused():
    model = plain_model("llama")
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


Pair = tuple[torch.Tensor, torch.Tensor]
Heads = Callable[[int, int], Pair]

FARTHEST = 1_000_000
POSITIONS = st.integers(0, FARTHEST)
# How cos and sin meet the channels: halves, interleaved pairs, a share of either, half-size cos.
LAYOUTS = {
    "llama": "halves, all channels",
    "phi3": "halves, all channels, queries and keys of one projection",
    "gpt_neox": "halves, a quarter of the channels",
    "stablelm": "halves, a quarter of the channels, grouped",
    "cohere": "interleaved pairs, all channels",
    "glm": "interleaved pairs, half of the channels",
    "gpt_oss": "halves, cos and sin of half the size",
    "deepseek_v3": "the last channels of a head",
}
METHODS: dict[str, Callable[[Rope], Frequencies]] = {
    "none": lambda rope: none.frequencies(rope, FARTHEST),
    "pi": lambda rope: pi.frequencies(rope, FARTHEST, factor=3.7),
    "yarn": lambda rope: yarn.frequencies(rope, FARTHEST, factor=16.0),
}
EPSILON = 2.0**-24  # of float32: the largest relative error of one rounding
ROUNDINGS = 24 * EPSILON  # cos, sin, two products and a sum a channel, then sums over a head


HALVING = Frequencies(2.0 ** -torch.arange(8, dtype=torch.float32))


@contextmanager
def heads(family: str, method: Callable[[Rope], Frequencies]) -> Iterator[Heads]:
    """Yield what gives the first layer's query at one position and its key at another, float32.

    They are taken where the model hands them to its attention: after its own rotation, inside the
    patch. Two different tokens stand at the two positions, the same two in every call.
    """
    caught: list[Pair] = []

    def catch(module: Any, query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any) -> Any:
        caught.append((query, key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)))
        width = getattr(module, "v_head_dim", query.shape[-1])
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], width), None

    @torch.inference_mode()
    def at(first: int, second: int) -> Pair:
        caught.clear()
        tokens, positions = torch.tensor([[5, 77]]), torch.tensor([[first, second]])
        model(input_ids=tokens, position_ids=positions, use_cache=False)
        query, key = caught[0]
        assert query.dtype == key.dtype == torch.float32
        return query[0, :, 0], key[0, :, 1]

    AttentionInterface.register("catch_heads", catch)
    model = build(tiny(family))
    with patched(model, method(rope_of(model.config))):
        model.set_attn_implementation("catch_heads")  # after the patch has looked at real output
        yield at


def score(pair: Pair) -> torch.Tensor:
    """Return query times key of each head, in units of their norms: from -1 to 1."""
    query, key = (part.double() for part in pair)
    return (query * key).sum(-1) / (query.norm(dim=-1) * key.norm(dim=-1))


def angle_error(frequencies: Frequencies, *positions: int) -> float:
    """Return by how many radians float32 angles at these positions are off in sum, at most.

    An angle is position * frequency, rounded once to float32: by up to half the distance of two
    neighbouring numbers of its size, most for the fastest channel pair. At a million tokens and
    one radian a token that is 2^(19 - 24) = 1/32 radian. It is the model's own rounding, with and
    without a patch: transformers makes its angles so.
    """
    angles = (position * float(frequencies.inv_freq.max()) for position in positions if position)
    return sum(2.0 ** (math.floor(math.log2(angle)) - 24) for angle in angles)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"),
    [*((family, "yarn") for family in LAYOUTS), ("llama", "none"), ("llama", "pi")],
)
def test_a_rotation_keeps_norms_and_the_score_of_a_difference(family, method):
    """Norms are those of position 0, and query times key is the same wherever the two stand.

    The latter within what float32 angles allow: one off by e moves a pair's share of the score by
    at most e times its norms, so the whole score, in units of the norms, by at most the sum of the
    errors at the four positions.
    """
    frequencies = METHODS[method](rope_of(tiny(family)))
    with heads(family, METHODS[method]) as at:
        start = [part.norm(dim=-1) for part in at(0, 0)]

        @settings(max_examples=6)
        @given(first=POSITIONS, second=POSITIONS, shift=POSITIONS)
        def hold(first: int, second: int, shift: int) -> None:
            shift = min(shift, FARTHEST - max(first, second))
            there = (first + shift, second + shift)
            allowed = ROUNDINGS + angle_error(frequencies, first, second, *there)
            here, moved = at(first, second), at(*there)
            for part, norm in zip((*here, *moved), (*start, *start), strict=True):
                torch.testing.assert_close(part.norm(dim=-1), norm, rtol=ROUNDINGS, atol=0)
            assert float((score(here) - score(moved)).abs().max()) <= allowed

        hold()


@pytest.mark.parametrize("family", each(LAYOUTS, "llama", "cohere"))
def test_where_angles_are_exact_a_score_is_too(family):
    """With frequencies 1, 1/2, 1/4, … no angle is rounded, and a million tokens out nothing is.

    A position below 2^24 times a power of two is a float32 number; what is left is the rounding of
    cosine, sine, products and sums.
    """
    with heads(family, lambda rope: Frequencies(HALVING.inv_freq[: rope.rotary_dim // 2])) as at:

        @settings(max_examples=5)
        @given(first=POSITIONS, second=POSITIONS, shift=POSITIONS)
        def hold(first: int, second: int, shift: int) -> None:
            shift = min(shift, FARTHEST - max(first, second))
            found, moved = score(at(first, second)), score(at(first + shift, second + shift))
            assert float((found - moved).abs().max()) <= ROUNDINGS

        hold()


@pytest.mark.parametrize("family", each(LAYOUTS, "llama", "cohere"))
def test_another_difference_is_another_score(family):
    """The scores compared above are not the same for every difference: a rotation takes place."""
    with heads(family, METHODS["none"]) as at:
        here, near, far = (score(at(1000 + gap, 1000)) for gap in (0, 1, 7))
    assert float((near - here).abs().max()) > 1e-2
    assert float((far - near).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("field", "value"),
    [("rope_theta", "1e4"), ("rope_theta", None), ("partial_rotary_factor", "half"),
     ("original_max_position_embeddings", [64]), ("rope_theta", float("nan"))],
)  # fmt: skip
def test_a_config_whose_geometry_is_no_number_is_refused(field, value):
    config = LlamaConfig(hidden_size=32, num_attention_heads=2)
    config.rope_parameters = {**config.rope_parameters, field: value}
    with pytest.raises(UserError, match="must be a number, the config gives"):
        rope_of(config)


@pytest.mark.parametrize("kind", ["gemma4_text", "blt"])
def test_layers_without_a_common_head_are_refused(kind):
    with pytest.raises(UserError, match=f"^{kind}: the config gives no head_dim of all layers"):
        rope_of(AutoConfig.for_model(kind))


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
