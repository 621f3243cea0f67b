"""Many families of transformers through the patch and the engine; the table made of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import check_rope, open_checkpoint
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
    find_plainly,
    inside,
    logits,
    plainly,
    table,
    tiny,
)
from tests.tiny import WINDOW, tiny_tokenizer

PER_TYPE = ("gemma3_text", "laguna", "mellum", "modernbert-decoder", "olmo3")
# An attention that masks by itself, one that cannot be replaced, and those.
UNMOVED = ("doge", "falcon", *INDEXING)
ROUNDING = 1e-5  # of the logits' spread


def shipping(family: str, **scaling: Any) -> Any:
    config = tiny(family)
    config.rope_parameters[FULL].update(scaling)
    return config


@pytest.mark.parametrize("family", each(SUPPORTED))
def test_a_family_is_measured_as_it_is(family):
    """Identity and restoration to the bit, transformers' own types, and the loss with labels."""
    found: Findings = find(family)
    assert found.refusal == ""
    assert found.identity
    assert found.restored
    assert found.effect > 1e-2
    assert max(found.linear, found.yarn) < ROUNDING
    assert found.moved is None if family in UNMOVED else (found.moved or 0) > 1e-2
    assert found.unmoved < 2e-3
    assert found.losses[0] == pytest.approx(found.losses[1], rel=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("family", PLAINLY)
def test_a_family_without_a_rotary_embedding_is_measured_as_it_is(family):
    """The engine's losses are the model's own, to rounding, and tables of positions are found."""
    found = find_plainly(family)
    assert found.losses[0] == pytest.approx(found.losses[1], rel=2e-6)
    ending = ("biogpt", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "opt")
    assert found.positions == (WINDOW if family in ending else None)


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_patched_whole_is_refused_by_name(family):
    assert find(family).refusal.startswith(REFUSED[family][0])


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
def test_a_scaling_shipped_for_full_attention_is_read(family, scaling, tmp_path):
    """Native gives the checkpoint's own logits, plain methods take its scaling off whole."""
    config = shipping(family, **scaling)
    model, rope = build(config), rope_of(config)
    check_geometry(model, rope)
    assert rope.trained_length == WINDOW
    assert torch.equal(inside(model, native.frequencies(rope, LENGTH)), logits(model))
    plain = build(tiny(family))
    plain.load_state_dict(model.state_dict())
    frequencies = yarn.frequencies(rope, LENGTH, factor=FACTOR)
    assert torch.equal(inside(model, frequencies), inside(plain, frequencies))
    config.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    opened = open_checkpoint(str(tmp_path), device="cpu")
    check_rope(opened.config, opened.rope)


def test_a_model_of_sliding_layers_alone_is_refused():
    """A config may describe full attention that no layer has: the module tells."""
    config = tiny("gemma3_text")
    config.layer_types = ["sliding_attention", "sliding_attention"]
    with pytest.raises(UserError, match="Gemma3ForCausalLM has no full_attention_inv_freq"):
        check_geometry(build(config), rope_of(config))


@pytest.mark.slow
def test_the_table_of_families_is_up_to_date():
    text = (ROOT / "results" / "families.md").read_text(encoding="utf-8")
    if f"transformers {transformers.__version__}. " not in text:
        pytest.skip("the table is of another transformers")
    assert text == table()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:

    def of(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        build(plainly(family)).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        return folder

    return of


@pytest.mark.slow
def test_a_sweep_measures_a_model_as_it_is(plain, docs, ropewalk, tmp_path):
    """Beyond its positions GPT-2 has failed cells with the reason, BLOOM is measured throughout."""
    words = ["--docs", docs, "--task", "perplexity:tail=16", "--length", "1x", "2x"]
    for family, status in {"gpt2": 1, "bloom": 0}.items():
        place = tmp_path / family
        one = ["run", "--model", plain(family), *words, "--scaling", "none", "native"]
        ended = ropewalk(*one, "--out", place)
        assert ended.status == status, ended.err
        model = json.loads((place / "run.json").read_text())["model"]
        assert (model["rotary_dim"], model["base"], model["trained_length"]) == (0, None, WINDOW)
        told = "has positions for 64 tokens and cannot read 128"
        assert (told in " ".join(ended.err.split())) == bool(status)


def test_a_method_needs_a_rotary_embedding(plain, ropewalk, tmp_path):
    folder = plain("bloom")
    ended = ropewalk("run", "--model", folder, "--scaling", "none", "yarn", "--out", tmp_path / "r")
    assert ended.status == 2
    assert "no rotary embedding that yarn could change" in " ".join(ended.err.split())
    with pytest.raises(UserError, match="give --trained-length TOKENS"):
        geometry_of(AutoConfig.for_model("mamba"))
    assert geometry_of(AutoConfig.for_model("mamba"), 512).trained_length == 512
