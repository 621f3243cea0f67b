"""Memory estimated before a run against what its tensors come to."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MistralConfig

from ropewalk.harness.engine import Sizes, answers, memory, sdpa
from ropewalk.harness.engine.prefix_tree import build_tree
from ropewalk.harness.patching.banded_attention import kept_of
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.sweep.memory import needed
from ropewalk.harness.sweep.plan import Cell, Item
from ropewalk.scaling import dual_chunk
from ropewalk.scaling.types import Rope
from ropewalk.tasks.types import Generate, Loglikelihood
from tests.asking import peaks
from tests.cuda_operators import Operators


def config(width: int, layers: int, vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 128, vocab_size=vocabulary,
        tie_word_embeddings=False,
    )  # fmt: skip


def built(shaped: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model that the engine has checked, so that only a measurement is counted."""
    model = AutoModelForCausalLM.from_config(shaped, dtype=dtype).eval()
    list(answers(model, [scored(asked(50, 0)[0])]))
    return model


def scored(tokens: tuple[int, ...], start: int = 1) -> Loglikelihood:
    return Loglikelihood(tokens, start, doc_id="q")


def asked(length: int, forks: int) -> list[tuple[int, ...]]:
    text = [(31 * i * i + 7 * i) % 1000 for i in range(length)]
    many = [tuple(text)]
    for fork in range(forks):
        rest = [(fork + 3 * i) % 1000 for i in range(length // 2)]
        many.append((*text[: length - len(rest)], *rest))
    return many


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "layers", "vocabulary", "pack", "length", "forks", "chunk", "new", "dtype"),
    [
        (256, 2, 32_000, 8192, 2048, 0, 2048, 0, "float32"),
        (256, 1, 4096, 4096, 2048, 0, 512, 0, "bfloat16"),
        (256, 2, 4096, 2048, 3072, 2, 2048, 0, "float32"),
        (256, 4, 4096, 1024, 1024, 1, 512, 5, "float32"),
    ],
)
def test_the_estimate_is_what_is_measured(
    width, layers, vocabulary, pack, length, forks, chunk, new, dtype
):
    """Tensors hold three quarters of the estimate, NumPy hardly any; an allocator keeps more."""
    shaped = config(width, layers, vocabulary)
    model = built(shaped, getattr(torch, dtype))
    many = [
        Generate(tokens, new, doc_id="q") if new else scored(tokens, length - 9 if fork else 1)
        for fork, tokens in enumerate(asked(length, forks))
    ]
    shape = memory.Shape.of(shaped, model.dtype.itemsize)
    tree, sizes = build_tree(asked(length, forks)), Sizes(pack, chunk)
    texts = [(path, length + new) for path in tree.paths] if new else []
    estimate = memory.shared(shape, tree, 1 if new else length, sizes, texts)
    measured, beside = peaks(lambda: list(answers(model, many, sizes, str)))
    assert measured == pytest.approx(0.75 * estimate, rel=0.15)
    assert beside < 0.05 * estimate


MIXTURE = AutoConfig.for_model(  # eight of sixteen experts: each has a copy of a row
    "qwen3_moe", hidden_size=256, moe_intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, head_dim=64, num_experts=16,
    num_experts_per_tok=8, vocab_size=4096, intermediate_size=256,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("shaped", "moved"), [(MIXTURE, False), (config(256, 2, 4096), True)])
def test_experts_and_moved_positions_are_in_the_estimate(shaped, moved):
    model, (tokens,) = built(shaped), asked(2048, 0)
    bands = dual_chunk.bands(Rope(64, 10_000.0, 512), 2048)
    more = ((), kept_of(bands)) if moved else ()
    shape = memory.Shape.of(shaped, 4)
    estimate = memory.shared(shape, build_tree([tokens]), 2048, Sizes(), *more)
    if not moved:
        measured, _ = peaks(lambda: list(answers(model, [scored(tokens)])))
    else:
        with patched(model, bands):
            list(answers(model, [scored(tokens[:50])]))  # the check of the model
            measured, _ = peaks(lambda: list(answers(model, [scored(tokens)])))
    assert measured == pytest.approx(0.75 * estimate, rel=0.15)


def test_moved_positions_of_a_model_with_windows_are_in_the_estimate():
    """Each question is a forward of its own, with the tables of the bands and without a mask."""
    fields = {"sliding_window": 512, **config(256, 2, 1024).to_dict()}
    shaped = MistralConfig(**{k: v for k, v in fields.items() if k != "model_type"})
    model, question = built(shaped), scored(asked(1024, 0)[0], 1015)
    checkpoint = SimpleNamespace(
        config=shaped, dtype="float32", device="cpu", sliding_window=512, weight_bytes=0
    )
    plan: Any = SimpleNamespace(checkpoint=checkpoint)
    bands: Any = dual_chunk.bands(Rope(64, 10_000.0, 512), 1024)
    with patched(model, bands):
        list(answers(model, [scored(question.tokens[:50])]))  # the check of the model
        measured, _ = peaks(lambda: list(answers(model, [question])))
    estimate = needed(plan, Item(Cell("dual_chunk", "task", 1024, bands, "key", ()), question))
    assert 0.75 * estimate < measured < estimate


@pytest.mark.parametrize("flash", [True, False])
def test_a_gpu_needs_neither_a_mask_nor_copies_of_keys(flash, monkeypatch):
    shaped, length = config(512, 1, 1024), 4096
    model, (tokens,) = built(shaped), asked(length, 0)
    monkeypatch.setattr(sdpa, "blocked", lambda _: False)
    operators = Operators.installed(monkeypatch, flash=flash, dense=False)
    shape, tree = replace(memory.Shape.of(shaped, 4), gpu=True), build_tree([tokens])
    estimate = memory.shared(shape, tree, 10, Sizes(chunk=256))
    question = scored(tokens, length - 9)
    measured, _ = peaks(lambda: list(answers(model, [question], Sizes(chunk=256))))
    assert operators.calls
    assert 0.75 * estimate < measured < estimate
    assert estimate < memory.shared(replace(shape, gpu=False), tree, 10, Sizes(chunk=256))
