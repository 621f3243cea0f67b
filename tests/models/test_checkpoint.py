"""What a checkpoint is known by, and which ones would give numbers that are not what they say."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

import ropewalk as rw
from ropewalk.harness.data.corpus import make_context
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import Checkpoint, check_rope, open_checkpoint
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.frequencies import check_geometry
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.sweep.plan import make_plan
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling import native, none
from ropewalk.tasks._prompt import continued
from tests import families
from tests.tiny import SHAPE, WINDOW, YARN, save_tiny, tiny_config, tiny_tokenizer


def opened(folder: Path) -> Checkpoint:
    return open_checkpoint(str(folder), device="cpu")


def saved_config(folder: Path, config: Any) -> Path:
    config.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_any_changed_weight_is_another_model(tiny, tmp_path):
    """Each tensor in turn, one number changed: the fingerprint, and so every key, is another."""
    seen = {opened(tiny).fingerprint}
    weights = load_file(tiny / "model.safetensors")
    copy = Path(shutil.copytree(tiny, tmp_path / "copy"))
    assert opened(copy).fingerprint in seen
    for name in weights:
        one = {key: value.clone() for key, value in weights.items()}
        one[name].view(-1)[-1] += 1
        save_file(one, copy / "model.safetensors", metadata={"format": "pt"})
        seen.add(opened(copy).fingerprint)
    assert len(seen) == 1 + len(weights)


def check_scaling(checkpoint: Checkpoint) -> None:
    check_rope(checkpoint.config, checkpoint.rope)


def test_a_model_that_rotates_otherwise_than_its_config_says_is_refused(tmp_path):
    """Llama rotates whole heads, and reads no alpha."""
    alpha = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 1.0, "alpha": 1000.0}
    for name, keys in {
        "alpha": {"rope_parameters": alpha},
        "part": {"partial_rotary_factor": 0.5},
    }.items():
        folder = saved_config(tmp_path / name, tiny_config("llama", **keys))
        for ask in (
            lambda folder=folder: check_scaling(opened(folder)),
            lambda folder=folder: rw.export(folder, scaling="yarn", length="4x", to="vllm"),
            lambda folder=folder: rw.inspect(folder, scaling="native", length="4x"),
        ):
            with pytest.raises(UserError, match="not those its config describes"):
                ask()


def test_the_fixed_base_of_hunyuan_is_read():
    """It calls it "dynamic" and gives it as alpha: native has the model's own logits."""
    config = families.tiny("hunyuan_v1_dense")
    config.rope_parameters |= {"rope_type": "dynamic", "factor": 1.0, "alpha": 1000.0}
    model, rope = families.build(config), rope_of(config, 2 * WINDOW)
    check_rope(config, rope)
    before = families.logits(model)
    own, plain = (one.frequencies(rope, 1) for one in (native, none))
    assert torch.equal(families.inside(model, own), before)
    assert not torch.equal(families.inside(model, plain), before)


def test_a_given_window_replaces_that_of_a_rotary_model(tiny, tmp_path, docs):
    """The rotation is transformers' yarn from that window, and the shipped scaling stays."""
    config = tiny_config("llama", rope_parameters=dict(YARN), max_position_embeddings=4 * WINDOW)
    rope, name = rope_of(config, 2 * WINDOW), "original_max_position_embeddings"
    assert (
        native.frequencies(rope, 1).fingerprint
        == native.frequencies(rope_of(config), 1).fingerprint
    )
    folder = Path(shutil.copytree(tiny, tmp_path / "scaled"))
    config.save_pretrained(folder)
    asked = {"trained_length": 2 * WINDOW, "scaling": ("yarn",), "task": ("passkey",)}
    plan = make_plan(Spec(model=str(folder), docs=str(docs), length=("3x",), **asked))
    config.rope_parameters |= {"factor": 3.0, name: 2 * WINDOW}
    theirs = AutoModelForCausalLM.from_config(config).model.rotary_emb
    (rotation,) = {cell.rotation for cell in plan.cells}
    torch.testing.assert_close(rotation.inv_freq, theirs.inv_freq, rtol=1e-6, atol=0)


def test_a_longrope_checkpoint_is_read_natively_at_every_length():
    """Phi-3's two lists: native through the patch gives the library's own logits, bit for bit."""
    lists = {
        "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
    }
    parameters = {"rope_type": "longrope", "rope_theta": 10_000.0, **lists}
    windows = {"max_position_embeddings": 4 * WINDOW, "original_max_position_embeddings": WINDOW}
    config = AutoConfig.for_model(
        "phi3", **{**SHAPE, **windows}, vocab_size=300, num_key_value_heads=1,
        pad_token_id=0, rope_parameters=parameters,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    rope = rope_of(model.config)
    assert rope.trained_length == WINDOW
    check_geometry(model, rope)
    for length in (WINDOW // 2, WINDOW, WINDOW + 1, 3 * WINDOW):
        tokens = (torch.arange(length)[None] * 7919) % 256 + 1
        with torch.inference_mode():
            wanted = model(input_ids=tokens, use_cache=False).logits
            with patched(model, native.frequencies(rope, length)):
                found = model(input_ids=tokens, use_cache=False).logits
        assert torch.equal(found, wanted)


def test_a_tokenizer_of_another_model_is_refused(tmp_path, docs):
    folder = save_tiny(tmp_path / "small", vocab_size=100)
    with pytest.raises(
        UserError, match=r"token \d+ is not in the vocabulary of small, which has 100"
    ):
        make_plan(Spec(model=str(folder), docs=str(docs), task=("perplexity:tail=16",)))


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_a_generation_config_beyond_greedy_is_refused_before_the_weights(tiny, tmp_path, file):
    folder = Path(shutil.copytree(tiny, tmp_path / "beams"))
    (folder / "generation_config.json").unlink()
    written = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps({**written, "num_beams": 4, "guidance_scale": 1.0}))
    spec = Spec(model=str(folder), task=("passkey:depths=1,trials=1",), length=("1024",))
    make_plan(spec)
    spec = spec.model_copy(update={"task": ("niah:depths=1,trials=1",)})
    with pytest.raises(UserError, match="sets num_beams, which greedy generation does not apply"):
        make_plan(spec)


def test_text_that_goes_on_has_no_stray_space():
    """Llama-2's SentencePiece puts a space before each text; a prompt has none."""
    words = ["▁The", "▁grass", "The", "grass", "▁", "\n", "▁is", "is", ".", "x"]
    vocabulary = {word: index for index, word in enumerate(["<unk>", "<s>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    splits = (pre_tokenizers.Split(sign, "isolated") for sign in "\n.")
    spaces = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, *splits])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")

    context = make_context(fast, list, WINDOW)
    for text, tokens in (
        ("The grass is.", ["The", "▁grass", "▁is", "."]),
        (" The grass is.", ["▁The", "▁grass", "▁is", "."]),
        ("\nThe grass", ["\n", "The", "▁grass"]),
    ):
        assert fast.convert_ids_to_tokens(continued(context, text)) == tokens


def test_control_tokens_in_a_text_are_letters():
    source = make_context(tiny_tokenizer(), list, WINDOW)
    assert source.bos not in source.encode("a <s> b")
    assert source.decode(source.encode("a <s> b")) == "a <s> b"


@pytest.mark.parametrize("given", [{}, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}])
def test_segments_of_a_gpu_can_grow_unless_the_user_says_otherwise(given, monkeypatch):
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    open_checkpoint("reference", device="cpu")
    wanted = given or {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert {name: os.environ[name] for name in names if name in os.environ} == wanted
