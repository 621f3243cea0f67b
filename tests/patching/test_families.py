"""Many families of transformers through the patch and the engine; the table made of it."""

import json

import pytest
import torch
import transformers
from transformers import AutoConfig

from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.config import FULL, geometry_of, rope_of
from ropewalk.harness.patching.frequencies import check_geometry, rotary_name
from ropewalk.harness.patching.patch import patched
from ropewalk.scaling import native, pi, yarn
from tests import ROOT
from tests.families import (
    FACTOR,
    INDEXING,
    LENGTH,
    PLAINLY,
    REFUSED,
    SUPPORTED,
    Findings,
    build,
    each,
    find,
    inside,
    logits,
    row,
    tiny,
)
from tests.tiny import WINDOW, tiny_tokenizer

PER_TYPE = ("gemma3_text", "laguna", "mellum", "modernbert-decoder", "olmo3")
# An attention that masks by itself, one that cannot be replaced, and those.
UNMOVED = ("doge", "falcon", "llama4_text", *INDEXING)


@pytest.mark.parametrize("family", each(SUPPORTED))
def test_a_family_is_measured_as_it_is(family):
    """Identity and restoration to the bit, transformers' own types, and the loss with labels."""
    found = find(family)
    assert found.refusal == ""
    assert found.wrong == ""
    assert found.moved is None if family in UNMOVED else (found.moved or 0) > 1e-2
    in_table(found)


@pytest.mark.slow
@pytest.mark.parametrize("family", PLAINLY)
def test_a_family_without_a_rotary_embedding_is_measured_as_it_is(family):
    """The engine's losses are the model's own, to rounding, and tables of positions are found."""
    found = find(family)
    assert (found.refusal, found.wrong, found.rotary) == ("", "", "")
    ending = ("biogpt", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "opt")
    assert found.positions == (WINDOW if family in ending else None)
    in_table(found)


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_patched_whole_is_refused_by_name(family):
    found = find(family)
    assert found.refusal.startswith(REFUSED[family])
    in_table(found)


def in_table(found: Findings) -> None:
    """Check a family's row of the committed table, where that is of this transformers."""
    text = (ROOT / "results" / "families.md").read_text(encoding="utf-8")
    if f"transformers {transformers.__version__}, " in text:
        assert row(found) in text.splitlines()


@pytest.mark.parametrize("family", each(PER_TYPE, "olmo3"))
def test_sliding_layers_keep_their_own_frequencies(family):
    """Of a rotary embedding per layer type only the full-attention one is patched, bit for bit."""
    config = tiny(family)
    model, positions = build(config), torch.arange(LENGTH)[None]
    name, nothing = rotary_name(model), torch.zeros(1)

    def angles(kind: str) -> torch.Tensor:
        return torch.cat(model.get_submodule(name)(nothing, positions, layer_type=kind))

    sliding, full = angles("sliding_attention"), angles(FULL)
    with patched(model, pi.frequencies(rope_of(config), LENGTH, factor=FACTOR)):
        assert torch.equal(angles("sliding_attention"), sliding)
        assert not torch.equal(angles(FULL), full)
    assert torch.equal(angles(FULL), full)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 8.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": WINDOW,
         "truncate": False},
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", each(PER_TYPE, "olmo3"))
def test_a_scaling_shipped_for_full_attention_is_read(family, scaling):
    """Native gives the checkpoint's own logits, plain methods take its scaling off whole."""
    config = tiny(family)
    config.rope_parameters[FULL].update(scaling)
    model, rope = build(config), rope_of(config)
    check_geometry(model, rope)
    assert rope.trained_length == WINDOW
    assert torch.equal(inside(model, native.frequencies(rope, LENGTH)), logits(model))
    plain = build(tiny(family))
    plain.load_state_dict(model.state_dict())
    frequencies = yarn.frequencies(rope, LENGTH, factor=FACTOR)
    assert torch.equal(inside(model, frequencies), inside(plain, frequencies))


@pytest.mark.slow
def test_a_sweep_measures_a_model_as_it_is(docs, ropewalk, tmp_path):
    """Beyond its positions GPT-2 has failed cells with the reason; no method changes it."""
    model, out = tmp_path / "gpt2", tmp_path / "run"
    build(tiny("gpt2")).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    words = ["run", "--model", model, "--docs", docs, "--task", "perplexity:tail=16", "--out", out]
    ended = ropewalk(*words, "--length", "1x", "2x", "--scaling", "none", "native", "log_n")
    assert ended.status == 1, ended.err
    described = json.loads((out / "run.json").read_text())["model"]
    assert (described["rotary_dim"], described["base"]) == (0, None)
    assert described["trained_length"] == WINDOW
    assert "has positions for 64 tokens and cannot read 128" in " ".join(ended.err.split())
    refused = ropewalk(*words, "--scaling", "none", "yarn")
    assert refused.status == 2
    assert "no rotary embedding that yarn could change" in " ".join(refused.err.split())


def test_a_model_without_a_window_needs_one():
    with pytest.raises(UserError, match="give --trained-length TOKENS"):
        geometry_of(AutoConfig.for_model("mamba"))
    assert geometry_of(AutoConfig.for_model("mamba"), 512).trained_length == 512
