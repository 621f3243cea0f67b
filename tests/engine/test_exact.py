"""No saving changes a bit of a float32 result on a CPU; what cannot be shared is not."""

from random import Random
from typing import Any

import pytest
import torch

from ropewalk.harness.engine import Sizes, answers
from ropewalk.harness.engine.forward import shareable
from ropewalk.harness.engine.packed_attention import NAME
from ropewalk.harness.engine.prefix_tree import build_tree
from ropewalk.harness.engine.sdpa import causal, padded_length, tile_mask
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.tasks.types import Loglikelihood, Request, Response
from tests.asking import asked, forwarded, together
from tests.families import SUPPORTED, build, each, tiny
from tests.tiny import tiny_config

DENSE = (
    "apertus", "arcee", "bitnet", "cohere", "ernie4_5", "gemma", "glm", "glm4", "gpt_neox",
    "granite", "helium", "hunyuan_v1_dense", "hyperclovax", "jais2", "llama", "nanochat",
    "nemotron", "olmo", "olmo2", "persimmon", "phi", "phi3", "qwen2", "qwen3", "seed_oss",
    "smollm3", "stablelm", "starcoder2",
)  # fmt: skip
EXPERTS = (
    "aria_text", "ernie4_5_moe", "flex_olmo", "glm4_moe", "granitemoe", "hunyuan_v1_moe", "hy_v3",
    "minimax_m2", "mixtral", "olmoe", "qwen3_moe", "solar_open",
)  # fmt: skip
ALONE = tuple(name for name in SUPPORTED if name not in (*DENSE, *EXPERTS))


def alone(model: Any, questions: list[Request]) -> dict[int, Response | None]:
    return {i: dict(answers(model, [one]))[0] for i, one in enumerate(questions)}


@pytest.fixture(scope="module")
def reference(reference: tuple[Checkpoint, Any]) -> Any:
    return reference[1]


@pytest.mark.parametrize("family", each(DENSE))
def test_sharing_chunks_and_order_change_no_bit(family):
    model, questions = build(tiny(family)), asked(480)[1:6:2]
    with torch.inference_mode():
        assert shareable(model)
    backwards = together(model, questions[::-1], Sizes(pack=300, chunk=64, logits=1))
    wanted = alone(model, questions)
    assert {len(questions) - 1 - i: answer for i, answer in backwards.items()} == wanted


@pytest.mark.slow
def test_the_reference_model_has_the_same_bits_every_way(reference):
    """The same of a trained model over 600 tokens: at once on one thread, in packs on two."""
    questions = asked(600)[::2]  # a whole, a beginning, a fork, two alone
    try:
        for threads, sizes in ((1, Sizes()), (2, Sizes(pack=512, chunk=96))):
            torch.set_num_threads(threads)
            assert together(reference, questions, sizes) == alone(reference, questions)
    finally:
        torch.set_num_threads(1)


def forked(seed: int, count: int = 14) -> list[Request]:
    """Return questions that fork from one another at any position, some of which begin others."""
    draw = Random(seed)
    known = [draw.choices(range(1, 257), k=500)]
    for _ in range(count):
        stem = draw.choice(known)[: draw.randrange(2, 400)]
        known.append(stem + draw.choices(range(1, 257), k=draw.choice((0, 1, 33, 90, 270))))
    return [Loglikelihood(tuple(t), draw.randrange(1, len(t)), doc_id="q") for t in known]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_forks_of_forks_have_the_bits_of_each_alone(seed):
    model, questions = build(tiny("llama")), forked(seed, 9)
    wanted = alone(model, questions)
    for sizes in (Sizes(), Sizes(pack=400, chunk=96), Sizes(pack=64, chunk=32)):
        assert together(model, questions, sizes) == wanted


def test_a_chunk_without_a_mask_has_the_bits_of_many_with_one():
    """A text's first chunk needs no mask; also where it is longer than 2048 rows and odd."""
    model = build(tiny("llama"))
    tokens = tuple(Random(2).choices(range(64), k=2611))
    question = Loglikelihood(tokens, 1, doc_id="q")
    whole, cut = Sizes().layer_rows(1, causal=True), Sizes(chunk=2048)
    assert whole > len(tokens)
    assert together(model, [question], Sizes()) == together(model, [question], cut)


@pytest.mark.parametrize("family", each(EXPERTS))
def test_mixtures_of_experts_share_to_rounding(family):
    """How many tokens an expert gets changes its kernel: bits may differ, 1e-5 nats may not."""
    model, questions = build(tiny(family)), asked()[3:6:2]
    wanted, found = alone(model, questions), together(model, questions, Sizes(pack=300, chunk=64))
    for index, answer in found.items():
        other = wanted[index]
        assert answer.nll == pytest.approx(other.nll, abs=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("family", each(ALONE))
def test_what_is_more_than_causal_attention_is_not_shared(family):
    assert not shareable(build(tiny(family)))


@pytest.mark.parametrize("family", each(("gemma2", "lfm2", "qwen2_moe")))
def test_what_is_not_shared_has_the_bits_of_each_alone(family):
    model, questions = build(tiny(family)), asked()[2:5]  # they begin with the same 300 tokens
    assert together(model, questions, Sizes()) == alone(model, questions)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mixtral", "gemma2", "falcon"])
def test_the_model_is_as_it_was(family):
    model = build(tiny(family))
    before, tokens = model.config._attn_implementation, torch.arange(1, 90)[None]
    with torch.inference_mode():
        wanted = model(input_ids=tokens).logits
        for _ in answers(model, asked()):
            assert model.config._attn_implementation == before != NAME
            assert torch.equal(model(input_ids=tokens).logits, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(2, 2, 16), (4, 1, 64), (8, 2, 80)])
def test_a_row_of_the_kernel_has_the_same_bits_every_way(heads):
    torch.manual_seed(0)
    count, groups, width = heads
    query = torch.randn(1, count, 1300, width)
    key, value = (torch.randn(1, groups, 1536, width) for _ in range(2))
    mask = tile_mask(1300, query)
    whole = causal(query, key, value, 0, None, mask)
    for first, rows in ((1, 1), (17, 2), (256, 300), (511, 2), (512, 700), (1000, 16), (1299, 1)):
        held = padded_length(first + rows, query.device)
        part = (query[:, :, first : first + rows], key[:, :, :held], value[:, :, :held])
        assert torch.equal(causal(*part, first, None, mask), whole[:, :, first : first + rows])
    seen = torch.ones(1300, 1300, dtype=torch.bool).tril()
    copies = (t[:, :, :1300].repeat_interleave(count // groups, 1).double() for t in (key, value))
    plain = torch.nn.functional.scaled_dot_product_attention(
        query.double(), *copies, attn_mask=seen
    )
    assert torch.allclose(whole.double(), plain, atol=1e-5)


def test_a_curve_costs_its_longest_length():
    """The prefix protocol over 8 lengths of 2 documents forwards each document's tokens once."""
    model, draw = build(tiny_config("llama")), Random(0)
    texts = [draw.choices(range(1, 257), k=1024) for _ in range(2)]
    lengths = range(128, 1025, 128)
    questions = [Loglikelihood(tuple(text[:n]), 1, doc_id="q") for text in texts for n in lengths]
    assert forwarded(model, questions) == 2 * 1024


def test_a_grid_costs_its_different_beginnings():
    model, draw = build(tiny_config("llama")), Random(0)
    hay = draw.choices(range(1, 200), k=640)
    prompts = [
        (*hay[:depth], 200 + key, *hay[depth:639])
        for depth in (0, 160, 320, 480)
        for key in range(5)
    ]
    questions = [Loglikelihood(tokens, 634, doc_id="q") for tokens in prompts]
    planned = sum(len(node.tokens) for node in build_tree(prompts).nodes)
    assert planned <= forwarded(model, questions) < planned + 32
    assert planned < 0.67 * 640 * len(prompts)


def test_what_does_not_fit_together_is_tried_alone_in_small_chunks():
    model, questions = build(tiny_config("llama")), asked()
    wanted = alone(model, questions)

    def fail(_: Any, __: Any, named: Any) -> None:
        if named["hidden_states"].shape[1] > 256:
            raise MemoryError

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(fail, with_kwargs=True)
    assert together(model, questions, Sizes()) == wanted
