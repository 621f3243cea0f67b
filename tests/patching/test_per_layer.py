"""Frequencies for each layer: against a loop over the layers by hand, and in every command."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.harness.engine import DEFAULT, Sizes
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.frequencies import rotary_name
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.scaling import layerwise, none, ntk, pi, yarn
from ropewalk.scaling.types import Frequencies, PerLayerFrequencies, Rope
from tests import families
from tests.asking import asked, own_losses, together
from tests.command_line import sweep
from tests.families import build, each, logits

ROPE = Rope(64, 10_000.0, 256, layers=12)
FAMILIES = ("llama", "gemma2", "gpt_neox", "cohere", "gemma3_text", "qwen3_moe", "olmo3", "smollm3")
FEW = ("llama", "gemma3_text")
CURVED = "layerwise:first=0.2,last=1.7,kind=yarn"
FIXED = """
from ropewalk.scaling import Frequencies, PerLayerFrequencies

def frequencies(rope, length, *, layers: int = 0):
    own = rope.inv_freq()
    count = layers or rope.layers
    return PerLayerFrequencies(tuple(Frequencies(own / (k + 1), 1 + k / 10) for k in range(count)))
"""


def found(model: Any) -> PerLayerFrequencies:
    rope = rope_of(model.config)
    return PerLayerFrequencies(tuple(
        Frequencies(ntk.frequencies(rope, 1, factor=3.0 + 4 * k).inv_freq, 1.0 + 0.2 * k)
        for k in range(rope.layers)
    ))  # fmt: skip


@contextmanager
def by_hand(model: Any, each_layer: Sequence[Frequencies]) -> Iterator[None]:
    """Give every decoder layer that attends to all tokens cos and sin of its own."""
    rotary = deepcopy(model.get_submodule(rotary_name(model)))
    slot = "full_attention" if hasattr(rotary, "full_attention_inv_freq") else ""
    stack = getattr(model, "model", None) or model.gpt_neox
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * len(stack.layers)
    kept = [layer.forward for layer in stack.layers]

    def turned(own: Any, one: Frequencies) -> Any:
        def forward(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            name = f"{slot}_" * bool(slot)
            setattr(rotary, f"{name}inv_freq", one.inv_freq)
            setattr(rotary, f"{name}attention_scaling", one.attention_factor)
            here = torch.arange(hidden.shape[1])[None]
            cos_sin = rotary(hidden, here, *[slot] * bool(slot))
            return own(hidden, *args, **{**kwargs, "position_embeddings": cos_sin})

        return forward

    for layer, kind, own, one in zip(stack.layers, kinds, kept, each_layer, strict=True):
        if not slot or kind == slot:
            layer.forward = turned(own, one)
    try:
        yield
    finally:
        for layer, own in zip(stack.layers, kept, strict=True):
            layer.forward = own


@pytest.mark.parametrize("family", each(FAMILIES, *FEW))
def test_each_layer_rotates_by_its_own_numbers(family):
    """Logits are those of a loop over the layers by hand, bit for bit; then the model is restored.

    In whichever order the layers are given: reversed they are another attention.
    """
    model = build(families.tiny(family))
    before, one = logits(model), found(model)
    with by_hand(model, one.layers):
        wanted = logits(model)
    with patched(model, one):
        assert torch.equal(logits(model), wanted)
    if family not in ("gemma3_text", "olmo3", "smollm3"):  # where one layer of two is scaled
        with patched(model, PerLayerFrequencies(one.layers[::-1])):
            assert not torch.equal(logits(model), wanted)
    with pytest.raises(RuntimeError, match="inside"), patched(model, one):
        raise RuntimeError("inside")
    assert torch.equal(logits(model), before)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_the_engine_shares_beginnings_to_the_bit():
    """Losses are those of each question alone, and of a loop over the layers by hand."""
    model, questions = build(families.tiny("llama")), asked()
    one = found(model)
    with patched(model, one):
        whole = together(model, questions, Sizes(pack=300, chunk=64))
        alone = {at: together(model, [q], DEFAULT)[0] for at, q in enumerate(questions)}
    assert whole == alone
    with by_hand(model, one.layers):
        wanted = own_losses(model, questions[0].tokens)
    assert whole[0].nll == pytest.approx(wanted.tolist(), rel=2e-6, abs=2e-6)


def test_a_model_that_cannot_is_refused():
    """Where a layer's cos and sin cannot be replaced, or layers share keys, nothing is measured."""
    model = build(families.tiny("llama"))
    one = found(model)

    def copied(_: Any, args: Any, given: Any) -> Any:
        angles = tuple(part.clone() for part in given["position_embeddings"])
        return args, {**given, "position_embeddings": angles}

    model.model.layers[-1].register_forward_pre_hook(copied, with_kwargs=True)
    with pytest.raises(UserError, match="some layer does not use"), patched(model, one):
        pass
    model = build(families.tiny("llama"))
    model.config.num_kv_shared_layers = 1
    with pytest.raises(UserError, match="rotate their own keys"), patched(model, one):
        pass


@pytest.mark.parametrize(("kind", "plain"), [
    ("pi", pi.frequencies), ("ntk", ntk.frequencies), ("yarn", yarn.frequencies),
])  # fmt: skip
def test_layerwise_is_its_method_at_each_layers_factor(kind, plain):
    """Naively, layer by layer; with all shares alike it is the method; at 0 the model as it is."""
    one = layerwise.frequencies(ROPE, 2048, first=0, second=0.5, third=2, last=1, kind=kind)
    for layer, got in enumerate(one.layers):
        t = layer / 11
        share = 3 * (1 - t) ** 2 * t * 0.5 + 3 * (1 - t) * t**2 * 2 + t**3
        wanted = plain(ROPE, 2048, factor=8.0**share)
        torch.testing.assert_close(got.inv_freq, wanted.inv_freq, rtol=2e-6, atol=0)
        assert got.attention_factor == pytest.approx(wanted.attention_factor)
    for options in ({}, {"factor": 3.7}):
        alike = layerwise.frequencies(ROPE, 2048, kind=kind, **options)
        assert alike.fingerprint == plain(ROPE, 2048, **options).fingerprint
    still = dict.fromkeys(("first", "second", "third", "last"), 0.0)
    plainest = none.frequencies(ROPE, 1).fingerprint
    assert layerwise.frequencies(ROPE, 2048, kind=kind, **still).fingerprint == plainest
    assert layerwise.frequencies(ROPE, 256, first=2, kind=kind).fingerprint == plainest


@pytest.mark.slow
def test_a_run_records_every_layer(ropewalk, tiny, docs, tmp_path, monkeypatch):
    """Built-in, from a file of code or of JSON numbers; equal numbers are measured once."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FIXED)
    lists = [{name: [k + 1.0] * 8 for name in ("short_factor", "long_factor")} for k in range(2)]
    tables = [{**one, "attention_factor": 1 + k / 10} for k, one in enumerate(lists)]
    Path("numbers.json").write_text(json.dumps({"layers": tables}))
    methods = ["pi", "layerwise", CURVED, "./mine.py", "./numbers.json"]
    settings = {"length": ["4x"], "task": ["perplexity:tail=16"], "scaling": methods}
    done = ropewalk(*sweep(tiny, docs, tmp_path / "run", **settings))
    assert done.status == 0, done.err
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    prints = {cell["scaling"]: cell["frequencies"] for cell in record["cells"]}
    assert prints["layerwise"] == prints["pi"] != prints[CURVED]
    assert prints["numbers"] == prints["mine"] != prints[CURVED]
    wanted = resolve(load("method", CURVED), rope_of(families.tiny("llama")), 256).layers
    assert record["frequencies"][prints[CURVED]]["layers"] == [
        {"inv_freq": one.inv_freq.tolist(), "attention_factor": one.attention_factor}
        for one in wanted
    ]


@pytest.mark.parametrize(("scaling", "words"), [
    ("./mine.py:layers=3", "3 sets of frequencies for 2 layers"),
    ("./none.json", "must be a list of tables"),
    ("layerwise:first=5", "must be from 0 to 4"),
])  # fmt: skip
def test_a_mistake_is_one_sentence_before_any_weight(
    scaling, words, ropewalk, tiny, docs, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FIXED)
    Path("none.json").write_text('{"layers": []}')
    done = ropewalk(*sweep(tiny, docs, tmp_path / "run", scaling=[scaling]))
    assert (done.status, words in done.err, done.err.count("\n")) == (2, True, 1), done.err


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_an_engine_without_layers_refuses(engine, tiny):
    with pytest.raises(UserError, match="one set of frequencies for all layers"):
        rw.export(tiny, scaling="layerwise:last=2", length="4x", to=engine)
    assert rw.export(tiny, scaling="layerwise", length="4x", to=engine).form == "linear"
