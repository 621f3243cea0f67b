"""The attention of moved positions, run on models: equal to the slow, plain way."""

import gc
import weakref
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache

from ropewalk.harness.errors import UserError
from ropewalk.harness.patching import banded_attention
from ropewalk.harness.patching.banded_attention import BandedAttention
from ropewalk.harness.patching.layout import NAME
from ropewalk.harness.patching.patch import patched
from tests.asking import peaks
from tests.banded import LENGTH, METHODS, TOKEN, bands_of, inside, likelihoods, model_of
from tests.families import TOKENS, build, each, tiny
from tests.naive import naively

# Half-split, interleaved, partial, offset; grouped queries, soft-capping, sinks, sliding layers,
# layers without a rotary embedding, a rotary embedding per layer type, two attentions a layer.
FAMILIES = (
    "cohere", "gemma2", "gemma3_text", "glm", "gpt_neox", "gpt_oss", "llama", "smollm3",
)  # fmt: skip


def check_naive(family: str, method: str) -> None:
    """Hold the engine, in float64 but for its float32 angles, to the whole matrix of positions."""
    bands, model = bands_of(family, method), model_of(family)
    with naively(model, bands) as wide:
        wanted = likelihoods(wide)
    wide = deepcopy(model).double()
    wide.set_experts_implementation("eager")
    found = inside(wide, bands)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert float((likelihoods(wide) - wanted).abs().max()) > 1e-2  # it does change the numbers


@pytest.mark.parametrize("family", each(FAMILIES))
def test_a_family_attends_by_the_matrix_of_positions(family):
    """Every log-likelihood is that of the naive float64 attention to 1e-5."""
    check_naive(family, "self_extend")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "rerope", "dual_chunk", "jet_long ramped", "lm_infinite", "log_n on yarn", "per_query",
        "qwen dual_chunk", "lampe", "mesa", "self_logistic", "info_scale on yarn", "gali", "dpe",
        "dpe top", "ms_poe",
    ],
)  # fmt: skip
def test_a_method_attends_by_the_matrix_of_positions(method):
    """Every kind of bands: few, many, ramped, sparse, with scores scaled by their query, positions
    by channel pair and by head, and blended keys."""
    check_naive("qwen3", method)


@pytest.mark.parametrize(
    ("family", "method"),
    [("cohere", "ms_poe"), ("gpt_neox", "dpe"), ("gemma3_text", "dpe top"), ("glm", "gali")],
)
def test_heads_that_share_keys_and_partial_rotations_move_by_the_matrix(family, method):
    """A head's own positions where several share a key; channel pairs where some do not rotate."""
    check_naive(family, method)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_the_model_is_itself_again(family):
    """Bit for bit, also after an error inside; and transformers' registries are as they were."""
    model = model_of(family)
    before = likelihoods(model)
    inside(model, bands_of(family))
    assert torch.equal(likelihoods(model), before)
    with pytest.raises(RuntimeError, match="stop"), patched(model, bands_of(family)):
        raise RuntimeError("stop")
    assert torch.equal(likelihoods(model), before)
    assert NAME not in AttentionInterface._global_mapping
    assert NAME not in AttentionMaskInterface._global_mapping


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"),
    [
        *((family, "self_extend") for family in ("llama", "cohere", "gpt_neox", "smollm3")),
        *(("gemma2", method) for method in ("self_extend", "dual_chunk", "per_query")),
    ],
)
@torch.inference_mode()
def test_chunks_with_a_cache_are_one_forward(family, method):
    """Keys are cached unrotated, so neither chunks nor single tokens change the numbers."""
    model, bands = model_of(family), bands_of(family, method)
    with patched(model, bands):
        whole = model(input_ids=TOKEN, use_cache=False).logits
        kept = {"past_key_values": DynamicCache(), "use_cache": True}
        chunks = TOKEN.split([50, 40, 1, 1, LENGTH - 92], 1)
        found = [model(input_ids=chunk, **kept).logits for chunk in chunks]
    error = float((torch.cat(found, 1) - whole).abs().max())
    assert error <= 1e-5 * float(whole.abs().max()) + 1e-6


def test_tables_are_freed_with_the_patch():
    """Not at the next garbage collection: a GPU would hold those of several methods by then."""
    model, bands = model_of("llama"), bands_of("llama")
    gc.collect()
    gc.disable()
    try:
        with patched(model, bands):
            likelihoods(model)
            attention = weakref.ref(AttentionInterface().get(NAME))
            assert attention() is not None
        assert attention() is None
    finally:
        gc.enable()


def test_padding_is_refused():
    """Positions are those of whole rows; a padded row would be measured at wrong ones."""
    model, mask = model_of("llama"), torch.ones_like(TOKEN)
    with patched(model, bands_of("llama")):
        likelihoods(model, attention_mask=mask)
        mask[0, 0] = 0
        with pytest.raises(UserError, match="padding is not supported"):
            likelihoods(model, attention_mask=mask)


def test_a_static_cache_is_refused():
    """Its keys have the length of the whole cache, so that the last ones are not the rows' own."""
    model = model_of("llama")
    with (
        patched(model, bands_of("llama")),
        pytest.raises(UserError, match="a cache that grows"),
    ):
        model.generate(TOKEN[:, :40], max_new_tokens=2, cache_implementation="static")


def test_a_longer_context_than_the_bands_is_refused():
    with (
        patched(model_of("llama"), bands_of("llama")),
        pytest.raises(ValueError, match="128 tokens"),
    ):
        likelihoods(model_of("llama"), TOKENS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_it_gets(dtype):
    """Bands in 16 bits are as far from float32 as the plain model in 16 bits is, not farther."""
    model, bands = model_of("qwen3"), bands_of("qwen3")
    half = deepcopy(model).to(dtype)
    wanted = inside(model, bands)
    error = float((inside(half, bands) - wanted).abs().mean())
    usual = float((likelihoods(half) - likelihoods(model)).abs().mean())
    assert error <= 1.5 * usual


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name != "per_query exact"])
@torch.inference_mode()
def test_memory_is_linear_in_the_length(method, monkeypatch):
    """Tables are kept up to a bound, which is linear too, but not reached here by all methods."""
    monkeypatch.setattr(banded_attention, "KEPT_TABLES", 4)
    model, sizes = model_of("llama"), []
    for length in (512, 1024):
        tokens = torch.arange(length)[None] % 256
        with patched(model, bands_of("llama", method, length)):
            sizes.append(peaks(partial(model.model, input_ids=tokens, use_cache=False))[0])
    assert sizes[1] <= 2.2 * sizes[0]


SPARSE: dict[str, Any] = {
    "layer_types": ["minimax_m3_sparse", "full_attention"], "index_block_size": 32,
    "index_topk_blocks": 1, "index_local_blocks": 1, "index_n_heads": 2, "index_head_dim": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "given", "words"),
    [
        ("minimax_m3_vl_text", SPARSE, "masks or biases its scores itself"),
        ("deepseek_v32", {}, "masks or biases its scores itself"),
        ("hy_v4", {}, "masks or biases its scores itself"),
        ("olmoe", {"sliding_window": 48}, "does not pass its windows to attention"),
    ],
)
def test_an_attention_that_chooses_its_keys_is_refused(family, given, words):
    """Keys by index, or a window unlike its mask: no prompt of 24 tokens would show it."""
    model = build(tiny(family, **given))
    with pytest.raises(UserError, match=words), patched(model, bands_of("llama")):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_left_out_is_found_in_any_dtype(dtype, monkeypatch):
    """An ignored soft-capping of 50 moves one layer little, and is refused in 16 bits too."""
    model, own = deepcopy(model_of("gemma2")).to(dtype), BandedAttention.__call__
    for module in model.modules():
        if hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = 50.0

    def uncapped(self: Any, *given: Any, **options: Any) -> Any:
        options.pop("softcap", None)
        return own(self, *given, **options)

    inside(model, bands_of("gemma2"))
    monkeypatch.setattr(BandedAttention, "__call__", uncapped)
    with pytest.raises(UserError, match="changes its attention"):
        inside(deepcopy(model), bands_of("gemma2"))  # a copy is not proved yet


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen3_moe", "olmoe", "gpt_oss", "afmoe"])
def test_sixteen_bits_are_no_reason_to_refuse(family):
    """A model that is exact in float32 is taken in bfloat16, mixtures that change a route too."""
    inside(deepcopy(model_of(family)).to(torch.bfloat16), bands_of(family))
