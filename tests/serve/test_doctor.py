"""Planted faults are found, each by a test; a healthy model is told so in three lines."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import ropewalk as rw
from ropewalk.harness.models.checkpoint import open_checkpoint
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.harness.serve._doctor import config_findings
from ropewalk.harness.sweep.identity import losses_of, verdict
from ropewalk.scaling import Frequencies
from tests.command_line import Outcome, Ropewalk
from tests.served import Engine, serving
from tests.tiny import WINDOW, YARN, save_tiny, tiny_tokenizer

LONGROPE = {
    **YARN, "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8,
}  # fmt: skip


def written(folder: Path, keys: dict[str, Any]) -> Path:
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**told, **keys}))
    return folder


@pytest.fixture
def examined(ropewalk: Ropewalk, tmp_path: Path, docs: Path) -> Callable[..., Outcome]:
    """Return the command on a tiny model whose config.json has these keys."""

    def call(*words: str, **keys: Any) -> Outcome:
        folder = written(save_tiny(tmp_path / "m"), keys)
        return ropewalk("doctor", folder, "--docs", docs, *words)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("keys", [
    {}, {"rope_parameters": YARN, "max_position_embeddings": 256}, {"rope_parameters": LONGROPE},
])  # fmt: skip
def test_a_healthy_model_passes(keys, examined):
    done = examined(**keys)
    assert done.status == 0, done.out
    passed = [line.split()[1] for line in done.out.splitlines() if line.startswith("✓")]
    assert passed == ["config", "layers", "cache"]


@pytest.mark.parametrize(("keys", "words"), [
    ({"rope_parameters": {"rope_type": "default"}, "rope_base": 5e5}, "has no rope_theta, and "
     "rope_base 500000.0, which is not read: transformers takes 10000"),
    ({"rope_parameters": {**LONGROPE, "attention_factor": 1.3}}, "is dropped by vLLM and SGLang"),
    ({"rope_parameters": {**LONGROPE, "long_factor": [2.0] * 8}}, "two lists of factors"),
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
     "keys cached before keep an older one"),
    ({"rope_parameters": {k: v for k, v in YARN.items() if k[0] != "o"}},
     "has no original_max_position_embeddings"),
    ({"rope_parameters": YARN, "rope_scaling": {**YARN, "factor": 8.0}}, "differ in factor"),
    ({"rope_parameters": YARN, "rope_theta": 5e5}, "one or the other"),
])  # fmt: skip
def test_a_config_that_means_something_else(keys, words, tiny, tmp_path):
    folder = written(shutil.copytree(tiny, tmp_path / "m"), keys)
    found = config_findings(open_checkpoint(str(folder), device="cpu"))
    assert {one.verdict for one in found} == {"failed"}
    assert words in " ".join(one.text for one in found)


def test_a_base_under_the_name_of_its_class_is_read(tmp_path):
    """GPT-NeoX (Pythia) writes rotary_emb_base, and transformers takes the base from it."""
    told = {"model_type": "gpt_neox", "hidden_size": 32, "num_attention_heads": 2,
            "num_hidden_layers": 2, "rotary_emb_base": 25_000, "rotary_pct": 0.5}  # fmt: skip
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(told))
    (found,) = config_findings(open_checkpoint(str(tmp_path), device="cpu"))
    assert (found.verdict, "base 25000," in found.text) == ("passed", True), found.text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_keys_of_an_older_base_are_found_in_the_cache(kind, examined):
    parameters = {**LONGROPE, "rope_type": kind, "long_factor": [4.0] * 8}
    done = examined(rope_parameters=parameters)
    assert (done.status, "✗ config" in done.out) == (1, True)
    assert "✗ cache" in done.out
    assert "keys that were cached are not those of the whole text" in done.out
    # The patch has one base for the whole text, so its cache is sound.
    assert "✓ cache" in examined("--scaling", "yarn", "--length", "4x").out


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "words", "told"), [
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, (),
     "✗ cache   1,536 tokens, the last 64 one by one"),
    ({}, ("--scaling", "pi", "--length", "512"),
     "nothing was compared past the window of 1,024 tokens"),
])  # fmt: skip
def test_the_cache_is_checked_past_the_window_or_it_is_said_where_not(keys, words, told, examined):
    """A type that changes at 1024 tokens is found there; 48 tokens said that all is well."""
    assert told in examined(*words, **{"max_position_embeddings": 1024, **keys}).out


@pytest.mark.slow
def test_a_stateful_method_is_examined_and_not_the_model_without_it(examined, tiny, docs):
    """The plain model was called the patched one; its cache is sound, that of the type is not."""
    served = ("--scaling", "dynamic_ntk:mode=transformers", "--length", "4x")
    done = examined(*served)
    assert done.status == 1
    assert "✗ cache   96 tokens" in done.out
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    ids = tiny_tokenizer()((docs / "document-0.txt").read_text()[:200]).input_ids
    rope = rw.rope_of(model.config)
    method = load("method", "dynamic_ntk:mode=transformers")
    ours = losses_of(model, resolve(method, rope, 256), ids)
    plain = losses_of(model, Frequencies(rope.inv_freq()), ids)
    assert ours[40] == pytest.approx(plain[40], abs=1e-3)
    assert ours[150] != pytest.approx(plain[150], abs=1e-3)


@pytest.mark.slow
def test_a_method_that_changes_nothing_at_its_length_does_not_act(examined):
    done = examined("--scaling", "yarn")
    assert done.status == 0, done.out
    assert "at 64 tokens yarn is the plain model; name a longer --length or factor=" in done.out


ASKED = ("--scaling", "yarn:factor=4", "--length", "4x", "--server")


@pytest.mark.slow
@pytest.mark.parametrize(("scaling", "status", "words"), [
    ("yarn:factor=4", 0, "✓ server  yarn:factor=4: the losses of"),
    ("none", 1, "they match those of none"), ("pi:factor=2", 1, "no known cause explains them"),
])  # fmt: skip
def test_what_a_server_computes_is_found(scaling, status, words, tiny, docs, ropewalk):
    with serving(Engine(tiny, "vllm", scaling)) as url:
        done = ropewalk("doctor", tiny, "--docs", docs, *ASKED, url)
    assert (done.status, words in done.out) == (status, True), done.out


@pytest.mark.slow
def test_a_server_is_compared_at_the_length_that_is_meant(docs, ropewalk, tmp_path):
    """The checkpoint's own longrope has another list beyond the window: that one is meant at 4x."""
    shipped = {**LONGROPE, "long_factor": [4.0] * 8}
    folder = save_tiny(tmp_path / "m", rope_parameters=shipped)
    with serving(Engine(folder, "vllm", "native")) as url:
        done = ropewalk("doctor", folder, "--docs", docs, "--length", "4x", "--server", url)
    assert "✓ server  native: the losses of" in done.out


def test_a_mistake_is_one_sentence(tiny, rejected, tmp_path):
    (tmp_path / "one.txt").write_text("a")
    for words, said in (
        (("--server", "localhost:80"), "missing an 'http://'"),
        (("--server", "http://127.0.0.1:9"), "does not answer"),
        (("--docs", tmp_path / "one.txt"), "the first document of --docs has 1"),
        (("--scaling", "yarn", "--length", "1"), "--length is 1"),
    ):
        assert said in rejected("doctor", tiny, *words)


@pytest.mark.slow
def test_a_model_without_a_rotary_embedding_is_examined(tmp_path, docs, ropewalk, rejected):
    config = AutoConfig.for_model(
        "gpt2", n_embd=32, n_layer=2, n_head=2, vocab_size=300, n_positions=WINDOW,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "m")
    tiny_tokenizer().save_pretrained(tmp_path / "m")
    done = ropewalk("doctor", tmp_path / "m", "--docs", docs)
    assert done.status == 0, done.out + done.err
    assert "· layers  m has no rotary embedding: only methods that scale queries" in done.out
    assert "✓ cache   48 tokens" in done.out
    assert "no rotary embedding that yarn could change" in rejected(
        "doctor", tmp_path / "m", "--docs", docs, "--scaling", "yarn"
    )


def test_what_bfloat16_rounds_is_no_fault_of_a_server():
    """Of a small model bfloat16 moves a loss by 0.05 on average, and a server rounds too."""
    known = {"yarn": dict.fromkeys(range(64), 2.0), "none": dict.fromkeys(range(64), 2.3)}
    theirs = dict.fromkeys(range(64), 2.07)
    assert verdict("yarn", known, theirs, "bfloat16").verdict == "passed"
    assert verdict("yarn", known, theirs, "float32").verdict == "failed"
    assert verdict("none", known, theirs, "bfloat16").verdict == "failed"


def test_a_server_whose_losses_are_as_near_to_another_reading():
    """A server that drops a scaling is not called right where 16 bits hide the difference."""
    known = {"native": {1: 2.0, 2: 3.0}, "none": {1: 2.01, 2: 3.01}, "same": {1: 2.0, 2: 3.0}}
    found = verdict("native", known, {1: 2.02, 2: 3.02}, "float32")
    assert found.verdict == "note"
    assert "those of none are as close: this text cannot tell which" in found.text
    exact = verdict("native", known, known["native"], "float32")
    assert (exact.verdict, "none" in exact.text) == ("passed", False)
