"""The attention of moved positions, run on models: equal to the slow, plain way."""

from __future__ import annotations

import bisect
import inspect
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache

from harness.errors import UserError
from harness.models.checkpoint import Checkpoint
from harness.patching import layout
from harness.patching.banded_attention import parts_in_pieces
from harness.patching.config import rope_of
from harness.patching.layout import NAME, layouts_of
from harness.patching.patch import patched
from scaling import none, self_extend
from scaling.types import Bands
from tests.banded import LENGTH, TOKEN, bands_of, inside, likelihoods, model_of
from tests.families import TOKENS, each
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
def test_a_family_attends_by_the_matrix_of_positions(family: str) -> None:
    """Every log-likelihood is that of the naive float64 attention to 1e-5."""
    check_naive(family, "self_extend")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["rerope", "dual_chunk", "jet_long ramped", "lm_infinite", "log_n on yarn", "per_query"],
)
def test_a_method_attends_by_the_matrix_of_positions(method: str) -> None:
    """Every kind of bands: few, many, ramped, sparse and with scores scaled by their query."""
    check_naive("qwen3", method)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma3_text"])
def test_float32_costs_float32s_rounding(family: str) -> None:
    """The float32 engine is as far from the truth as the plain float32 model is, not farther."""
    model, bands = model_of(family), bands_of(family)
    found = inside(model, bands)
    with naively(model, bands) as wide:
        error = float((found - likelihoods(wide)).abs().max())
    wide = deepcopy(model).double()
    wide.set_experts_implementation("eager")
    usual = float((likelihoods(model) - likelihoods(wide)).abs().max())
    assert error <= 5 * usual + 1e-5


@pytest.mark.slow
def test_the_reference_model_attends_by_the_matrix_of_positions(
    reference: tuple[Checkpoint, Any],
) -> None:
    """On real weights and a real text, in float32: to 1e-5 beyond a window of 64 tokens."""
    opened, model = reference
    text = inspect.getsource(bisect)
    tokens = torch.tensor([opened.tokenizer(text)["input_ids"][:120]])
    bands = self_extend.bands(replace(opened.rope, trained_length=64), 120)
    assert isinstance(bands, Bands)
    with naively(model, bands) as wide:
        wanted = likelihoods(wide, tokens)
    torch.testing.assert_close(inside(model, bands, tokens), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_the_model_is_itself_again(family: str) -> None:
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
def test_chunks_with_a_cache_are_one_forward(family: str, method: str) -> None:
    """Keys are cached unrotated, so neither chunks nor single tokens change the numbers."""
    model, bands = model_of(family), bands_of(family, method)
    with patched(model, bands):
        whole = model(input_ids=TOKEN, use_cache=False).logits
        kept = {"past_key_values": DynamicCache(), "use_cache": True}
        chunks = TOKEN.split([50, 40, 1, 1, LENGTH - 92], 1)
        found = [model(input_ids=chunk, **kept).logits for chunk in chunks]
    error = float((torch.cat(found, 1) - whole).abs().max())
    assert error <= 1e-5 * float(whole.abs().max()) + 1e-6


@torch.inference_mode()
def test_rows_of_a_batch_are_alone() -> None:
    """Two texts of one length in one batch have the logits each has by itself."""
    model, bands = model_of("llama"), bands_of("llama")
    both = torch.cat((TOKEN, TOKEN.flip(1)))
    with patched(model, bands):
        found = model(input_ids=both, use_cache=False).logits
        alone = [model(input_ids=row[None], use_cache=False).logits[0] for row in both]
    torch.testing.assert_close(found, torch.stack(alone), rtol=0, atol=2e-4)


def test_padding_is_refused() -> None:
    """Positions are those of whole rows; a padded row would be measured at wrong ones."""
    model, mask = model_of("llama"), torch.ones_like(TOKEN)
    with patched(model, bands_of("llama")):
        likelihoods(model, attention_mask=mask)
        mask[0, 0] = 0
        with pytest.raises(UserError, match="padding is not supported"):
            likelihoods(model, attention_mask=mask)


def test_a_longer_context_than_the_bands_is_refused() -> None:
    """Never attended to by guesswork."""
    with (
        patched(model_of("llama"), bands_of("llama")),
        pytest.raises(ValueError, match="128 tokens"),
    ):
        likelihoods(model_of("llama"), TOKENS)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("falcon", "does not let its attention be replaced"),
        ("doge", "masks or biases its scores itself"),
    ],
)
def test_a_model_that_cannot_is_refused_by_name(family: str, words: str) -> None:
    """Before any number, and the model is left as it was."""
    model = model_of(family)
    before = likelihoods(model)
    with pytest.raises(UserError, match=words), patched(model, bands_of(family)):
        pass
    assert torch.equal(likelihoods(model), before)


def test_a_window_that_the_attention_is_not_told_of_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sliding layer whose window came as a mask alone would see everything."""
    model = model_of("gemma2")
    for module in model.modules():
        if getattr(module, "sliding_window", None):
            monkeypatch.setattr(module, "sliding_window", None)
    with pytest.raises(UserError, match="does not pass its windows to attention"):
        layouts_of(model)


def test_an_attention_that_is_not_understood_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-check on the model's own logits finds a wrong layout, whatever the reason."""
    model = deepcopy(model_of("llama"))  # not proved yet

    right = layout._layout

    def wrong(*given: Any) -> Any:
        found = right(*given)
        return found and replace(found, sign=-found.sign)

    monkeypatch.setattr(layout, "_layout", wrong)
    words = "cut into bands, changes its queries"
    with pytest.raises(UserError, match=words), patched(model, bands_of("llama")):
        pass


def test_bands_of_another_model_are_refused() -> None:
    """Their frequencies are not those of its channel pairs."""
    with (
        pytest.raises(UserError, match="channel pairs"),
        patched(model_of("gpt_neox"), bands_of("llama")),
    ):
        pass


@pytest.mark.parametrize(
    ("family", "rotated", "halves"),
    [
        ("llama", 16, True),
        ("qwen3", 16, True),
        ("cohere", 16, False),
        ("glm", 8, False),
        ("gpt_neox", 4, False),
        ("deepseek_v3", 16, False),
    ],
)
def test_the_layout_is_found_by_asking(family: str, rotated: int, halves: bool) -> None:
    """How many channels turn, and that partners share a frequency, one after the other in order."""
    for found in layouts_of(model_of(family)).values():
        assert found is not None
        moved = found.pair >= 0
        assert (int(moved.sum()), found.halves) == (rotated, halves)
        assert sorted(found.pair[moved].tolist()) == sorted([*range(rotated // 2)] * 2)
        assert torch.equal(found.partner[found.partner], torch.arange(len(found.pair)))


def test_layers_without_a_rotary_embedding_are_left() -> None:
    """A NoPE layer, and a sliding layer with a rotary embedding of its own."""
    kinds = {
        family: [found is not None for found in layouts_of(model_of(family)).values()]
        for family in ("smollm3", "gemma3_text", "cohere2")
    }
    assert kinds == {
        "smollm3": [True, False], "gemma3_text": [False, True], "cohere2": [True, False],
    }  # fmt: skip


def test_a_call_is_asked_for_its_rows_alone() -> None:
    """With a cache the parts are those of the last rows; keys that none of them meets are left."""
    bands = bands_of("llama")
    (near,) = parts_in_pieces(bands.bands[:1], 1, 100, None)
    assert (near.rows, near.keys) == (slice(0, 1), slice(84, 100))
    (windowed,) = parts_in_pieces(bands.bands[:1], 1, 100, 5)
    assert windowed.keys == slice(95, 100)
    assert parts_in_pieces(bands.bands[1:], 1, 100, 5) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_it_gets(dtype: torch.dtype) -> None:
    """Bands in 16 bits are as far from float32 as the plain model in 16 bits is, not farther."""
    model, bands = model_of("qwen3"), bands_of("qwen3")
    half = deepcopy(model).to(dtype)
    wanted = inside(model, bands)
    error = float((inside(half, bands) - wanted).abs().mean())
    usual = float((likelihoods(half) - likelihoods(model)).abs().mean())
    assert error <= 1.5 * usual


def test_plain_frequencies_need_no_bands() -> None:
    """One door for whatever a method returns: frequencies go through the rotary module alone."""
    model = model_of("llama")
    with patched(model, none.frequencies(rope_of(model.config), LENGTH)):
        assert model.config._attn_implementation != NAME
    with patched(model, bands_of("llama")):
        assert model.config._attn_implementation == NAME


def test_two_attentions_do_not_nest() -> None:
    """A model that is patched already is refused."""
    model = model_of("llama")
    again = patched(model, bands_of("llama"))
    with patched(model, bands_of("llama")), pytest.raises(UserError, match="patched already"):
        again.__enter__()
