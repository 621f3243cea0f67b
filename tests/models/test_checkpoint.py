"""What a checkpoint is known by, which of its files are read, and what would be another model."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

import ropewalk as rw
from ropewalk.harness.data.corpus import make_context
from ropewalk.harness.data.tokenize import tokenize
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import Checkpoint, check_rope, open_checkpoint
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.frequencies import check_geometry
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.sweep.plan import make_plan, open_model
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling import native, none
from ropewalk.tasks._prompt import continued
from tests import families
from tests.tiny import SHAPE, WINDOW, YARN, save_tiny, tiny_config, tiny_tokenizer

Weights = dict[str, torch.Tensor]


def opened(folder: Path, *, allow_pickle: bool = False, trusted: bool = False) -> Checkpoint:
    allowed = {"trust_remote_code": trusted, "allow_pickle": allow_pickle}
    return open_checkpoint(str(folder), dtype="float32", device="cpu", **allowed)


def planned(folder: Path) -> Checkpoint:
    return open_model(Spec(model=str(folder), dtype="float32", device="cpu"))


def safe(weights: Weights, path: Path) -> None:
    save_file(weights, path, metadata={"format": "pt"})


def refused(folder: Path, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_weights(opened(folder))


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny model, to be changed."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def test_what_a_tokenizer_lacks_is_named(folder):
    """The library's own words are a key alone, and advice on packages that are not missing."""
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer of .* cannot be read: there is no '\w+'\.$"):
        opened(folder)
    for path in folder.glob("*token*"):
        path.unlink()
    with pytest.raises(UserError, match="it has no tokenizer; copy"):
        opened(folder)


@pytest.mark.slow
def test_any_changed_weight_is_another_model(tiny, folder):
    """Each tensor in turn, one number changed: the fingerprint, and so every key, is another."""
    seen = {opened(tiny).fingerprint}
    weights = load_file(folder / "model.safetensors")
    assert opened(folder).fingerprint in seen
    for name in weights:
        one = {key: value.clone() for key, value in weights.items()}
        one[name].view(-1)[-1] += 1
        safe(one, folder / "model.safetensors")
        seen.add(opened(folder).fingerprint)
    assert len(seen) == 1 + len(weights)


def test_a_model_that_rotates_otherwise_than_its_config_says_is_refused(folder):
    """Llama rotates whole heads, and reads no alpha."""
    alpha = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 1.0, "alpha": 1000.0}
    settings = {"scaling": "native", "length": "4x"}
    for keys in ({"rope_parameters": alpha}, {"partial_rotary_factor": 0.5}):
        tiny_config("llama", **keys).save_pretrained(folder)
        for ask in (
            lambda: check_rope(opened(folder).config, opened(folder).rope),
            lambda: rw.export(folder, to="vllm", **settings),
            lambda: rw.inspect(folder, **settings),
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


def test_a_given_window_replaces_that_of_a_rotary_model(folder, docs):
    """The rotation is transformers' yarn from that window, and the shipped scaling stays."""
    config = tiny_config("llama", rope_parameters=dict(YARN), max_position_embeddings=4 * WINDOW)
    rope, name = rope_of(config, 2 * WINDOW), "original_max_position_embeddings"
    assert (
        native.frequencies(rope, 1).fingerprint
        == native.frequencies(rope_of(config), 1).fingerprint
    )
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
def test_a_generation_config_beyond_greedy_is_refused_before_the_weights(folder, file):
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
    assert source.opening[0] not in source.encode("a <s> b")
    assert source.decode(source.encode("a <s> b")) == "a <s> b"


def test_a_window_begins_with_what_a_tokenizer_without_a_begin_token_puts_before_a_text():
    """GLM writes [gMASK]<sop> by its post-processor; one that only ends a text writes nothing."""
    for single, opening in (("[gMASK] <sop> $A", (7, 8)), ("$A <sop>", ()), ("$A", ())):
        tokenizer = tiny_tokenizer()
        tokenizer.bos_token = None
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single, special_tokens=[("[gMASK]", 7), ("<sop>", 8)]
        )
        assert make_context(tokenizer, list, WINDOW).opening == opening


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


@pytest.mark.parametrize(("hurt", "words"), [
    (lambda folder: (folder / "tokenizer_config.json").unlink(),
     "has no tokenizer_config.json, which names the begin token"),
    (lambda folder: (folder / "adapter_config.json").write_text("{}"),
     "holds an adapter .* --adapter"),
    (lambda folder: (folder / "config.json").unlink(), "the config of .*model cannot be read"),
    (lambda folder: changed(folder, architectures=7), "the config of .*model cannot be read"),
    (lambda folder: changed(folder, head_dim=2**33), "rotary_dim must be even, from 2 to"),
    (lambda folder: changed(folder, rope_scaling={"type": "su"}), "of rope_type 'su', which is"),
    (lambda folder: (folder / "hf_quant_config.json").write_text("{}"),
     "does not read the quantised weights of .*model, only"),
    (lambda folder: changed(folder, quantization_config={"quant_method": "modelopt"}),
     "does not read the quantised weights of .*model, only"),
])  # fmt: skip
def test_what_is_no_model_is_refused_in_a_sentence(folder, hurt, words):
    hurt(folder)
    with pytest.raises(UserError, match=words) as caught:
        planned(folder)
    assert len(str(caught.value)) < 500


def test_a_file_of_a_folder_is_no_model(folder):
    with pytest.raises(UserError, match=r"model.safetensors is a file, but no GGUF file; give the"):
        planned(folder / "model.safetensors")


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
    refused(folder, r"do not fit its config: model.norm.weight is \(7,\), by the config \(32,\)")
    lost = "model.layers.1.mlp.up_proj.weight"
    safe({name: one for name, one in weights.items() if name != lost}, folder / "model.safetensors")
    refused(folder, f"do not contain the tensor {lost}.")
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(folder, "the weights of .* cannot be read: ")
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "model.safetensors").unlink()
    refused(folder, "has no weights in safetensors; .*--allow-pickle")


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
