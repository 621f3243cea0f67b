"""Texts of the engine against the library's own generation, and against scored sequences."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from ropewalk.harness.engine import DEFAULT, OutOfMemory, Sizes, answers
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.patch import patched
from ropewalk.scaling import dpe, dual_chunk, gali, lm_infinite, ms_poe, self_extend, yarn
from ropewalk.scaling.types import Frequencies, Rope
from ropewalk.tasks.types import Generate, Loglikelihood, Request, Response
from tests.asking import generated, peaks
from tests.banded import heads_of, model_of
from tests.families import build, each, tiny
from tests.tiny import tiny_tokenizer

NEW = 6
LENGTH = 140
FAMILIES = (
    "llama", "gemma2", "gemma3_text", "gpt_neox", "cohere", "phi3", "smollm3", "gpt_oss",
)  # fmt: skip
TOKENIZER = tiny_tokenizer()


def decode(tokens: Any) -> str:
    text: str = TOKENIZER.decode(list(tokens), skip_special_tokens=True)
    return text


def question(prompt: list[int], new: int = NEW, **more: Any) -> Request:
    return Generate(prompt, new, doc_id="text", **more)


def asked() -> list[Request]:
    """Return texts after one haystack, after other beginnings, and after a single token."""
    draw = Random("texts")
    hay = draw.choices(range(1, 257), k=100)
    prompts = [[*hay, *draw.choices(range(1, 257), k=n)] for n in (0, 3, 28)]
    prompts += [[*hay[:70], *draw.choices(range(1, 257), k=40)], [7]]
    return [question(prompt) for prompt in prompts]


def texts(model: Any, questions: list[Request], sizes: Sizes = DEFAULT) -> list[Response]:
    found = dict(answers(model, questions, sizes, decode))
    return [found[index] for index in range(len(questions))]


def stretched(rope: Rope) -> Frequencies:
    found = yarn.frequencies(rope, LENGTH, factor=4)
    assert isinstance(found, Frequencies)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "family"),
    [
        *(pytest.param("self_extend", *one.values, marks=one.marks) for one in each(FAMILIES)),
        *(("yarn", family) for family in ("llama", "gemma3_text")),
    ],
)
def test_a_text_is_that_of_generate(family, method):
    model = model_of(family)
    rope = rope_of(model.config)
    rotation = stretched(rope) if method == "yarn" else self_extend.bands(rope, LENGTH)
    questions = asked()[2:4]
    with patched(model, rotation):
        for one in questions:
            (answer,) = texts(model, [one])  # together they are the same, see below
            assert list(answer.tokens) == generated(model, one.tokens, NEW)
            assert answer.text == decode(answer.tokens)
            assert len(answer.nll) == len(answer.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("shipped", [
    {"no_repeat_ngram_size": 1, "repetition_penalty": 1.5},
    {"encoder_repetition_penalty": 0.5, "sequence_bias": [[[3], -9.0], [[5, 7], 4.0]]},
    {"encoder_no_repeat_ngram_size": 1, "exponential_decay_length_penalty": [2, 9.0]},
    {"suppress_tokens": [*range(0, 300, 2)], "begin_suppress_tokens": [*range(150)]},
    {"bad_words_ids": [[n] for n in range(0, 300, 3)], "forced_eos_token_id": 9},
    {"min_new_tokens": 4, "min_length": 108, "eos_token_id": [*range(250)]},
    {"forced_bos_token_id": 11, "eos_token_id": 299, "prompt_lookup_num_tokens": 3},
], ids=", ".join)  # fmt: skip
def test_a_text_follows_the_generation_config(family, shipped, monkeypatch):
    """The repetition penalty applies only where a task wants it: RULER generates with 1."""
    model, requests = model_of(family), asked()
    plain = [answer.tokens for answer in texts(model, requests)]
    for name, value in shipped.items():
        monkeypatch.setattr(model.generation_config, name, value)
    penalized = [replace(one, penalized=True) for one in requests]
    for given, limits in ((penalized, {}), (requests, {"repetition_penalty": 1.0})):
        found = [answer.tokens for answer in texts(model, given)]
        assert found == [tuple(generated(model, one.tokens, NEW, **limits)) for one in given]
        assert found != plain


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "cohere"])
def test_a_text_has_the_bits_of_a_scored_sequence(family):
    has_the_bits_of_a_scored_sequence(model_of(family), asked()[2:])


@pytest.mark.slow
@pytest.mark.parametrize("method", [
    lambda rope: self_extend.bands(rope, LENGTH, window=16),
    lambda rope: dual_chunk.bands(rope, LENGTH, chunk=24, largest=40),
    lambda rope: lm_infinite.bands(rope, LENGTH, window=20),
    lambda rope: gali.bands(rope, LENGTH, chunk=30),
    lambda rope: dpe.bands(rope, LENGTH, window=9, g1=2, g5=3),
    lambda rope: ms_poe.bands(
        rope, LENGTH, first_layer=1, heads=heads_of(rope.layers, rope.heads, rope.rotary_dim // 2)
    ),
], ids=["self_extend", "dual_chunk", "lm_infinite", "gali", "dpe", "ms_poe"])  # fmt: skip
def test_keys_that_pass_from_band_to_band_have_the_bits_of_a_scored_sequence(method):
    model = model_of("llama")
    prompts = [[*range(1, 30)], [7], [*range(5, 75)]]
    with patched(model, method(rope_of(model.config))):
        has_the_bits_of_a_scored_sequence(model, [question(one, 66) for one in prompts])


def has_the_bits_of_a_scored_sequence(model: Any, questions: list[Request]) -> None:
    for one, answer in zip(questions, texts(model, questions), strict=True):
        tokens = [*one.tokens, *answer.tokens]
        ((_, scored),) = answers(model, [Loglikelihood(tokens, one.start, doc_id="s")])
        assert scored.argmax[:-1] == answer.tokens
        assert scored.nll == answer.nll


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma2"])
def test_a_text_does_not_depend_on_what_else_is_asked(family):
    model, questions = model_of(family), asked()[1:4]
    found = texts(model, questions)
    others = [
        [texts(model, [one])[0] for one in questions],
        texts(model, questions[::-1])[::-1],
        texts(model, questions, Sizes(pack=64, chunk=32, logits=1)),
    ]
    for other in others:
        assert [answer.tokens for answer in other] == [answer.tokens for answer in found]
        assert other == found or family != "llama"


@pytest.mark.parametrize("family", ["mamba", "rwkv"])
def test_a_model_without_keys_reads_the_whole_text_again(family):
    model = build(tiny(family))
    found = [answer.tokens for answer in texts(model, asked()[3:])]
    assert found == [tuple(generated(model, one.tokens, NEW)) for one in asked()[3:]]


def test_a_text_ends_with_an_end_token_or_before_a_stop_string():
    """The end token is a token of the answer and not of its text; a stop string is not in it."""
    model = build(tiny("qwen3"))
    prompt = list(asked()[2].tokens)
    free = texts(model, [question(prompt)])[0]
    last = free.tokens[5]
    cut = free.tokens.index(last) + 1
    model.generation_config.eos_token_id = [299, last]
    ended = texts(model, [question(prompt)])[0]
    assert list(ended.tokens) == generated(model, prompt, NEW) == list(free.tokens[:cut])
    assert ended.text == decode(free.tokens[: cut - 1])
    model.generation_config.eos_token_id = None
    stop = decode(free.tokens[3:5])
    assert stop.isprintable() or len(stop) > 1
    stopped = texts(model, [question(prompt, stop=("never", stop))])[0]
    assert stopped.text == free.text.partition(stop)[0]
    assert stopped.tokens == free.tokens[: len(stopped.tokens)]
    assert stop not in decode(stopped.tokens[:-1])
    assert stop in decode(stopped.tokens)


@pytest.mark.slow
def test_memory_that_is_too_little_for_a_text_costs_no_other():
    """A text that does not fit, alone either, is OutOfMemory; the others are those of before."""
    model, questions = build(tiny("llama")), asked()
    wanted = texts(model, questions)

    def fail(_: Any, inputs: Any) -> None:
        if inputs[0].shape[1] >= 110:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.model.layers[1].register_forward_pre_hook(fail)
    found = texts(model, [*questions, question(list(range(1, 150)))], Sizes(pack=96, chunk=32))
    assert found == [*wanted, OutOfMemory("the GPU")]


def test_a_loss_that_is_not_finite_ends_a_text():
    model = build(tiny("llama"))
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    (answer,) = texts(model, [question([1, 2, 3])])
    assert len(answer.tokens) == 1
    assert answer.nll[0] != answer.nll[0]


@pytest.mark.slow
def test_what_is_kept_of_a_text_has_its_length_and_is_freed_with_it():
    """Neither the length of the bands nor texts that are done take memory."""
    model, rope = model_of("llama"), rope_of(model_of("llama").config)

    def need(length: int, count: int) -> int:
        few = [question([*range(n, n + 29)]) for n in range(1, 1 + count)]
        with patched(model, self_extend.bands(rope, length)):
            texts(model, few[:2])  # the checks of the model, and the tables of the bands
            return peaks(lambda: texts(model, few, Sizes(pack=70)))[0]  # two at a time

    assert need(512, 2) == need(8192, 2) == need(512, 8)
