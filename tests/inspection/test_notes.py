"""What is told before a number is read, for checkpoints of the shapes that the hub has."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from harness.inspection.notes import equal_to, notes
from harness.methods.resolve import resolve
from harness.patching.config import rope_of
from harness.plugins import catalogue, load
from scaling import native
from scaling.types import Rope
from tests import ROOT
from tests.tiny import WINDOW, YARN, save_tiny

# config.json as these checkpoints have it, older words ("type", rope_scaling) included, but for
# fewer layers.
HUB: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/data/checkpoints.json").read_text())
SHIPPED: dict[str, tuple[str, ...]] = {  # what it ships, and the method that keeps it
    "Llama-3.1-8B": ("llama3 scaling, factor 8 from 8,192 tokens.", "(= llama3:factor=8)"),
    # 32 = 131072 / 4096; sqrt(1 + ln 32 / ln 4096) = sqrt(1 + 5/12) = 1.190
    "Phi-3-mini-128k": ("longrope scaling, factor 32 from 4,096 tokens, attention factor 1.19.",
                        "(= longrope: one list of factors up to 4,096 tokens, another above)"),
    # 0.1 ln 4 + 1 = 1.1386
    "Qwen2.5-7B-yarn": ("yarn scaling, factor 4 from 32,768 tokens, attention factor 1.139.",
                        "(= yarn:factor=4)", "(base 1e+06, trained window 32,768)"),
    "vicuna-16k": ("linear scaling, factor 4, from a window its config does not give.",
                   "(= pi:factor=4)", "trained window 4,096, its max_position_embeddings"),
    "dynamic-8k": ("dynamic scaling, factor 2.5 from 8,192 tokens.", "(= dynamic_ntk:factor=2.5)"),
    # 0.1 ln 32 + 1 = 1.3466
    "gpt-oss-20b": ("yarn scaling, factor 32 from 4,096 tokens, attention factor 1.347.",
                    "(= yarn:factor=32,truncate=false)"),
}  # fmt: skip
NOTHING = "no distance exceeds the trained window, so a method has no use"
LAYERS = {
    "gpt-oss-20b": "Of 4 attention layers, 2 see only 128 tokens back, with the rotary "
    "embedding of the others, so that a method scales them too.",
    "gemma-3-1b": "Of 6 attention layers, 5 see only 512 tokens back, with their own "
    "rotary embedding, which no method changes.",
    "command-r7b": "Of 4 attention layers, 3 see only 4,096 tokens back and no other one "
    f"rotates: {NOTHING}; 1 has no rotary embedding.",
    "SmolLM3-3B": "Of 4 attention layers, 1 has no rotary embedding: no method changes them.",
    "Mistral-7B-v0.1": "Of 2 attention layers, 2 see only 4,096 tokens back and no other one "
    f"rotates: {NOTHING}.",
}


def told(config: Any, *scaling: str, lengths: tuple[int, ...] = (65536,)) -> list[str]:
    methods = [load("method", given) for given in scaling]
    return notes("model", config, methods, lengths, trust_remote_code=False)


@pytest.fixture
def hub(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a folder with nothing in it but the config.json of a checkpoint."""
    folder = tmp_path / str(request.param)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(HUB[request.param]))
    return folder


@pytest.mark.parametrize("hub", HUB, indirect=True)
def test_what_a_checkpoint_ships_and_what_a_method_acts_on(hub):
    """Of each checkpoint all that bears on a sweep is told, and nothing else."""
    found = told(AutoConfig.from_pretrained(hub), "none", "yarn")
    if hub.name in SHIPPED:
        ships = found.pop(0)
        assert ships.startswith("model ships ")
        assert all(words in ships for words in SHIPPED[hub.name])
    assert found == ([LAYERS[hub.name]] if hub.name in LAYERS else [])


@pytest.mark.parametrize("hub", HUB, indirect=True)
def test_native_is_the_method_that_is_named(hub):
    rope = rope_of(AutoConfig.from_pretrained(hub))
    named = load("method", equal_to(rope))
    for length in (1, rope.trained_length, rope.trained_length + 1, 16 * rope.trained_length):
        wanted = native.frequencies(rope, length).fingerprint
        assert resolve(named, rope, length).fingerprint == wanted


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"beta_fast": 16, "beta_slow": 2}, "yarn:factor=40,beta_fast=16,beta_slow=2"),
        ({"attention_factor": 1.2772588722239782},
         "yarn:factor=40,attention_factor=1.2772588722239782"),
        ({"mscale": 0.707, "mscale_all_dim": 1.0},
         "yarn:factor=40,mscale=0.707,mscale_all_dim=1"),
        ({"mscale": 1.0, "mscale_all_dim": 0}, "yarn:factor=40"),
    ],
)  # fmt: skip
def test_every_shipped_option_is_in_the_name(more, name):
    rope = Rope(64, 1e4, 4096, {"rope_type": "yarn", "factor": 40, **more})
    assert equal_to(rope) == name
    wanted = native.frequencies(rope, 1).fingerprint
    assert resolve(load("method", name), rope, 1).fingerprint == wanted


@pytest.mark.slow
@pytest.mark.parametrize("hub", ["Llama-3.1-8B"], indirect=True)
def test_a_method_on_another_one_says_what_stays_under_it(hub):
    config = AutoConfig.from_pretrained(hub)
    rope = rope_of(config)
    for given, on, fate in (
        ("log_n:on=native", "native", "kept"),
        ("log_n:on=resonance:on=native", "resonance:on=native", "kept"),
        ("log_n:on=yarn", "yarn", "removed"),
        ("log_n", "none", "removed"),
    ):
        wanted = f"{given} builds on {on}: the shipped scaling is {fate}."
        assert told(config, given)[1:] == [wanted]
        if "resonance" not in given:  # inside the window, where log-n and yarn do nothing
            bottom = "native" if fate == "kept" else "none"
            found, alone = (resolve(load("method", m), rope, 8192) for m in (given, bottom))
            assert found.fingerprint == alone.fingerprint
    assert told(AutoConfig.for_model("llama"), "log_n:on=native") == []


@pytest.mark.slow
def test_a_method_made_for_training_says_so():
    """ABF, CoPE, p-RoPE, Giraffe and Resonance train; the training-free ones say nothing."""
    config = AutoConfig.for_model("llama", num_hidden_layers=1)
    said = told(config, *(name for name in catalogue("method") if name != "native"))
    trained = [line.partition(" is made for training")[0] for line in said]
    assert trained == ["abf", "cope", "giraffe_power", "giraffe_truncated", "p_rope", "resonance"]
    assert told(config, "abf:base=1000000") == [
        "abf:base=1000000 is made for training: the paper trains on at the new base. Here the "
        "weights are used without training."
    ]


@pytest.mark.slow
def test_inspect_dry_run_and_run_say_it_before_the_numbers(tmp_path, docs, ropewalk):
    given = {"rope_parameters": YARN, "max_position_embeddings": 4 * WINDOW}
    folder = save_tiny(tmp_path / "stretched", **given)
    sentence = "stretched ships yarn scaling, factor 4 from 64 tokens, attention factor 1.139."
    words = ["--scaling", "none", "native", "yarn:factor=4", "--length", "2x"]
    assert " ".join(ropewalk("inspect", folder, *words).out.split()).count(sentence) == 1
    words += ["--model", folder, "--docs", docs, "--task", "perplexity:tail=16"]
    assert " ".join(ropewalk("run", *words, "--dry-run").out.split()).count(sentence) == 1
    done = ropewalk("run", *words, "--device", "cpu", "--out", tmp_path / "run")
    assert (done.status, " ".join(done.err.split()).count(sentence)) == (0, 1)
    cells = json.loads((tmp_path / "run" / "run.json").read_text())["cells"]
    keys = {cell["scaling"]: cell["key"] for cell in cells}
    assert keys["native"] == keys["yarn:factor=4"] != keys["none"]
