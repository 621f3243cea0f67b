"""No saving changes a bit of a float32 result on a CPU; what cannot be shared is not."""

from random import Random
from typing import Any

import pytest
import torch

from ropewalk.harness.engine import Sizes, answers
from ropewalk.harness.engine.forward import shareable
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.tasks.types import Loglikelihood, Request, Response
from tests.asking import asked, forwarded, together
from tests.families import SUPPORTED, build, each, tiny
from tests.tiny import tiny_config

DENSE = (
    "apertus", "arcee", "bitnet", "cohere", "ernie4_5", "gemma", "glm", "glm4", "gpt_neox",
    "granite", "helium", "hunyuan_v1_dense", "hyperclovax", "jais2", "llama", "llava", "nanochat",
    "nemotron", "olmo", "olmo2", "persimmon", "phi", "phi3", "qwen2", "qwen3", "qwen3_vl",
    "seed_oss", "smollm3", "stablelm", "starcoder2",
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
    whole, cut = Sizes().layer_rows(1, causal=True, gpu=False), Sizes(chunk=2048)
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


def test_a_curve_costs_its_longest_length():
    """Eight lengths of 2 documents, and their forks, forward every different beginning once."""
    model, draw = build(tiny_config("llama")), Random(0)
    texts = [draw.choices(range(1, 257), k=1024) for _ in range(2)]
    lengths = range(128, 1025, 128)
    curve = [Loglikelihood(tuple(text[:n]), 1, doc_id="q") for text in texts for n in lengths]
    assert forwarded(model, curve) == 2 * 1024
    forks = [Loglikelihood((*texts[0][:512], *[n] * 64), 513, doc_id="q") for n in range(5)]
    assert forwarded(model, [*curve, *forks]) == 2 * 1024 + 5 * 64


def test_what_does_not_fit_together_is_tried_alone_in_small_chunks():
    model, questions = build(tiny_config("llama")), asked()
    wanted = alone(model, questions)

    def fail(_: Any, __: Any, named: Any) -> None:
        if named["hidden_states"].shape[1] > 256:
            raise MemoryError

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(fail, with_kwargs=True)
    assert together(model, questions, Sizes()) == wanted
