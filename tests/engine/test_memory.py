"""Memory told before a run against what its tensors come to; sizes that fit a limit."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MistralConfig

from ropewalk.harness.engine import Sizes, answers, memory, sdpa
from ropewalk.harness.engine.prefix_tree import build_tree
from ropewalk.harness.patching.banded_attention import kept_of
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.sweep import memory as sweep_memory
from ropewalk.harness.sweep.plan import Batch, Cell, Item
from ropewalk.scaling import dual_chunk
from ropewalk.scaling.types import Bands, Rope
from ropewalk.tasks.types import Divergence, Generate, Loglikelihood
from tests.cuda_operators import Operators


def config(width: int, layers: int, vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 128, vocab_size=vocabulary,
        tie_word_embeddings=False,
    )  # fmt: skip


def asked(length: int, forks: int) -> list[tuple[int, ...]]:
    text = [(31 * i * i + 7 * i) % 1000 for i in range(length)]
    many = [tuple(text)]
    for fork in range(forks):
        rest = [(fork + 3 * i) % 1000 for i in range(length // 2)]
        many.append((*text[: length - len(rest)], *rest))
    return many


def peaks(run: Callable[[], object]) -> tuple[int, int]:
    """Return the most bytes that tensors hold at once, and that Python and NumPy do.

    Whatever the system does with the pages.
    """
    tracemalloc.start()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
        _, beside = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events)), beside


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "layers", "vocabulary", "pack", "length", "forks", "chunk", "new", "dtype"),
    [
        (256, 2, 32_000, 8192, 2048, 0, 2048, 0, "float32"),
        (256, 1, 4096, 4096, 2048, 0, 512, 0, "bfloat16"),
        (512, 1, 4096, 8192, 2048, 0, 1024, 0, "float32"),
        (256, 2, 4096, 2048, 3072, 2, 2048, 0, "float32"),
        (256, 4, 4096, 1024, 1024, 1, 512, 5, "float32"),
    ],
)
def test_the_estimate_is_what_is_measured(
    width, layers, vocabulary, pack, length, forks, chunk, new, dtype
):
    """Tensors hold three quarters of what is told, NumPy hardly any; an allocator keeps more."""
    shaped = config(width, layers, vocabulary)
    model = AutoModelForCausalLM.from_config(shaped, dtype=getattr(torch, dtype)).eval()
    many = [
        Generate(tokens, new, doc_id="q")
        if new
        else Loglikelihood(tokens, length - 9 if fork else 1, doc_id="q")
        for fork, tokens in enumerate(asked(length, forks))
    ]
    shape = memory.Shape.of(shaped, 4 if dtype == "float32" else 2)
    tree, sizes = build_tree(asked(length, forks)), Sizes(pack, chunk)
    texts = [(path, length + new) for path in tree.paths] if new else []
    told = memory.shared(shape, tree, 1 if new else length, sizes, texts)
    measured, beside = peaks(lambda: list(answers(model, many, sizes, str)))
    assert measured == pytest.approx(0.75 * told, rel=0.15)
    assert beside < 0.05 * told


@pytest.mark.slow
def test_moved_positions_are_in_the_estimate():
    shaped, length = config(256, 2, 4096), 2048
    model = AutoModelForCausalLM.from_config(shaped).eval()
    (tokens,) = asked(length, 0)
    bands = dual_chunk.bands(Rope(64, 10_000.0, 512), length)
    told = memory.shared(
        memory.Shape.of(shaped, 4), build_tree([tokens]), length, Sizes(), (), kept_of(bands)
    )
    with patched(model, bands):
        list(answers(model, [Loglikelihood(tokens[:50], 1, doc_id="q")]))  # the check of the model
    with patched(model, bands):
        question = Loglikelihood(tokens, 1, doc_id="q")
        measured, _ = peaks(lambda: list(answers(model, [question])))
    assert measured == pytest.approx(0.75 * told, rel=0.15)


def test_moved_positions_of_a_model_with_windows_are_in_the_estimate():
    """Each question is a forward of its own, with the tables of the bands and without a mask."""
    given = {"sliding_window": 512, **config(256, 2, 1024).to_dict()}
    shaped = MistralConfig(**{k: v for k, v in given.items() if k != "model_type"})
    model = AutoModelForCausalLM.from_config(shaped).eval()
    facts = {"dtype": "float32", "device": "cpu", "sliding_window": 512}
    facts |= {"parameter_count": 0, "weight_bytes": 0}
    plan: Any = SimpleNamespace(checkpoint=SimpleNamespace(config=shaped, **facts))
    told = {}
    for length in (1024, 8192):
        (tokens,) = asked(length, 0)
        question = Loglikelihood(tokens, length - 9, doc_id="q")
        bands = dual_chunk.bands(Rope(64, 10_000.0, 512), length)
        assert isinstance(bands, Bands)
        cell = Cell("dual_chunk", "task", length, bands, "key", (question,))
        told[length], compared = (
            sweep_memory._peak(plan, [Batch(bands, (Item(cell, one),))])(Sizes())
            for one in (question, Divergence(tokens, length - 9, doc_id="q"))
        )
        if length == 1024:
            with patched(model, bands):
                list(
                    answers(model, [Loglikelihood(tokens[:50], 1, doc_id="q")])
                )  # the check of the model
                measured, _ = peaks(lambda question=question: list(answers(model, [question])))
    assert 0.75 * told[1024] < measured < told[1024]
    assert told[8192] < 8.2 * told[1024]
    assert compared > told[8192]  # the model as it is has a mask


@pytest.mark.parametrize("flash", [True, False])
def test_a_gpu_needs_neither_a_mask_nor_copies_of_keys(flash, monkeypatch):
    shaped, length = config(512, 1, 1024), 4096
    model = AutoModelForCausalLM.from_config(shaped).eval()
    (tokens,) = asked(length, 0)
    question, tree = Loglikelihood(tokens, length - 9, doc_id="q"), build_tree([tokens])
    list(answers(model, [Loglikelihood(tokens[:50], 1, doc_id="q")]))  # the check of the model
    monkeypatch.setattr(sdpa, "blocked", lambda _: False)
    operators = Operators.installed(monkeypatch, flash=flash, dense=False)
    shape = replace(memory.Shape.of(shaped, 4), gpu=True)
    told = memory.shared(shape, tree, 10, Sizes(chunk=256))
    measured, _ = peaks(lambda: list(answers(model, [question], Sizes(chunk=256))))
    assert operators.calls
    assert 0.75 * told < measured < told
    assert told < memory.shared(replace(shape, gpu=False), tree, 10, Sizes(chunk=256))


@pytest.mark.slow
def test_every_expert_of_a_token_is_in_the_estimate():
    """Eight of sixteen: rows are copied for each, which is most of the memory of a layer."""
    shaped = AutoConfig.for_model(
        "qwen3_moe", hidden_size=256, moe_intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, head_dim=64, num_experts=16,
        num_experts_per_tok=8, vocab_size=4096, intermediate_size=256,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(shaped, dtype=torch.float32).eval()
    (tokens,) = asked(2048, 0)
    shape = memory.Shape.of(shaped, 4)
    told = memory.shared(shape, build_tree([tokens]), 2048, Sizes())
    measured, _ = peaks(lambda: list(answers(model, [Loglikelihood(tokens, 1, doc_id="q")])))
    assert measured == pytest.approx(0.75 * told, rel=0.15)


def test_layers_of_several_widths_count_as_the_widest():
    """The config of Gemma 3n has an MLP width for each layer."""
    several = AutoConfig.for_model("gemma3n_text", num_hidden_layers=2, intermediate_size=[64, 96])
    assert memory.Shape.of(several, 4).mlp == 96


def test_smaller_sizes_need_less():
    shape = memory.Shape(512, 8, 8, 64, 1408, 8, 32_000, 2)
    tree = build_tree([tuple(range(seed, seed + 3000)) for seed in range(0, 9000, 3000)])
    tried = Sizes().smaller
    needs = [memory.shared(shape, tree, 9000, sizes) for sizes in tried]
    assert tried[0] == Sizes()
    assert min(needs) < needs[0] / 2
    assert len(set(tried)) == len(tried)
