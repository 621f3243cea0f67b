"""Which files of a model are read, hashed and refused, whatever a folder holds."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ropewalk.harness.data.tokenize import tokenize
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import Checkpoint, open_checkpoint
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.sweep.plan import open_model
from ropewalk.harness.sweep.spec import Spec

Weights = dict[str, torch.Tensor]


def opened(folder: Path | str, *, allow_pickle: bool = False, trusted: bool = False) -> Checkpoint:
    allowed = {"trust_remote_code": trusted, "allow_pickle": allow_pickle}
    return open_checkpoint(str(folder), dtype="float32", device="cpu", **allowed)


def safe(weights: Weights, path: Path) -> None:
    save_file(weights, path, metadata={"format": "pt"})


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny model, to be changed."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def into_index(folder: Path, target: str, save: Callable[[Weights, Path], None] = safe) -> Weights:
    """Move a model's weights into one file of any name, which an index tells."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / target).parent.mkdir(exist_ok=True)
    save(weights, folder / target)
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, target)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return weights


def changed(folder: Path, name: str = "config.json", **changes: Any) -> Path:
    told = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(json.dumps(told))
    return folder


@pytest.mark.parametrize("target", ["inner/weights.safetensors", "weights.safetensors"])
def test_weights_wherever_an_index_has_them_are_in_the_fingerprint(folder, target):
    weights = into_index(folder, target)
    before = opened(folder)
    load_weights(before)
    weights["model.norm.weight"][0] += 1
    safe(weights, folder / target)
    assert opened(folder).fingerprint != before.fingerprint


def test_a_models_own_code_makes_another_model(folder):
    own = "from transformers import LlamaForCausalLM\n\n\nclass M(LlamaForCausalLM):\n    pass\n"
    (folder / "own.py").write_text(own)
    assert opened(folder, trusted=True).fingerprint == opened(folder).fingerprint
    changed(folder, auto_map={"AutoModelForCausalLM": "own.M"})
    assert opened(folder, trusted=True).fingerprint == opened(folder).fingerprint + "+code"


def test_pickles_that_an_index_names_are_asked_for(folder):
    into_index(folder, "weights.pt", torch.save)
    with pytest.raises(UserError, match=r"names weights.pt; only safetensors .* --allow-pickle"):
        opened(folder)
    load_weights(opened(folder, allow_pickle=True))


def test_no_attention_comes_from_the_hub(folder):
    model = load_weights(opened(changed(folder, attn_implementation="nobody/kernel")))
    assert model.config._attn_implementation == "sdpa"


def _adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


@pytest.mark.parametrize(("hurt", "words"), [
    (lambda folder: (folder / "tokenizer_config.json").unlink(),
     "has no tokenizer_config.json, which names the begin token"),
    (_adapter, "holds an adapter .* --adapter"),
    (lambda folder: (folder / "config.json").unlink(), "the config of .*model cannot be read"),
    (lambda folder: changed(folder, architectures=7), "the config of .*model cannot be read"),
    (lambda folder: changed(folder, head_dim=2**33), "rotary_dim must be even, from 2 to"),
    (lambda folder: changed(folder, rope_scaling={"type": "su"}), "cannot be read: 'su'"),
])  # fmt: skip
def test_what_is_no_model_is_refused_in_a_sentence(folder, hurt, words):
    hurt(folder)
    with pytest.raises(UserError, match=words) as refused:
        planned(folder)
    assert len(str(refused.value)) < 500


def test_an_expression_without_end_is_a_sentence(folder):
    """A tokenizer's expression that gives up on a text panics in Rust; that is no traceback."""
    given = json.loads((folder / "tokenizer.json").read_text())["pre_tokenizer"]
    split = {"type": "Split", "pattern": {"Regex": "^(([a-z])+.)+[A-Z]([a-z])+$"}}
    parts = [split | {"behavior": "Isolated", "invert": False}, given]
    sequence = {"type": "Sequence", "pretokenizers": parts}
    changed(folder, "tokenizer.json", pre_tokenizer=sequence)
    with pytest.raises(UserError, match="the tokenizer cannot encode a text: .*retry-limit"):
        tokenize(opened(folder).tokenizer, "a" * 60)


def test_each_error_of_weights_has_its_own_sentence(folder):
    whole = (folder / "model.safetensors").read_bytes()
    weights = load_file(folder / "model.safetensors")
    safe({**weights, "model.norm.weight": torch.ones(7)}, folder / "model.safetensors")
    _refused(folder, r"do not fit its config: model.norm.weight is \(7,\), by the config \(32,\)")
    lost = "model.layers.1.mlp.up_proj.weight"
    safe({name: one for name, one in weights.items() if name != lost}, folder / "model.safetensors")
    _refused(folder, f"do not contain the tensor {lost}.")
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    _refused(folder, "the weights of .* cannot be read: ")
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "model.safetensors").unlink()
    _refused(folder, "has no weights in safetensors; .*--allow-pickle")


def planned(folder: Path) -> Checkpoint:
    return open_model(Spec(model=str(folder), dtype="float32", device="cpu"))


@pytest.mark.parametrize("names", [
    ["model.layers.0.mlp.up_proj.bias", "model.layers.1.mlp.up_proj.bias"],
    ["model.layers.0.self_attn.q_norm.weight"],
    ["model.layers.0.self_attn.q_proj.weight_scale"],
    ["lm_head.bias"],
    ["model.layers.2.input_layernorm.weight"],
    ["layers.2.input_layernorm.weight"],  # the trunk was saved alone
])  # fmt: skip
def test_tensors_that_the_model_does_not_use_are_refused_before_a_weight_is_read(folder, names):
    weights = load_file(folder / "model.safetensors")
    more = {name: torch.ones(1) for name in names}
    safe({**weights, **more}, folder / "model.safetensors")
    for read in (planned, lambda folder: load_weights(opened(folder))):
        with pytest.raises(UserError, match=rf"LlamaForCausalLM does not use .*{names[0]}"):
            read(folder)


def test_parts_beside_the_text_model_are_recorded_and_change_no_number(folder):
    """A vision tower, draft layers, and buffers of old versions.

    The losses are those of transformers' own forward of the model before they were added.
    """
    tokens = torch.arange(1, 40)[None]
    wanted = AutoModelForCausalLM.from_pretrained(folder)(tokens, labels=tokens).loss
    weights = load_file(folder / "model.safetensors")
    parts = ["model.visual.blocks.0.attn.q_proj.weight", "mtp.layers.0.mlp.up_proj.weight"]
    buffers = ["model.layers.1.self_attn.rotary_emb.inv_freq", "model.layers.0.attn.bias"]
    more = {name: torch.ones(1) for name in (*parts, *buffers)}
    safe({**weights, **more}, folder / "model.safetensors")
    found = planned(folder)
    assert found.left_out == ("model.visual", "mtp")
    assert torch.equal(load_weights(found)(tokens, labels=tokens).loss, wanted)


def _refused(folder: Path, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_weights(opened(folder))
