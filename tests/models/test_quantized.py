"""Checkpoints that a library quantised: measured by its own layers, and named for their kind."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ropewalk.harness.engine import shareable
from ropewalk.harness.sweep.this_process import ready
from tests.adapters import opened, save
from tests.command_line import sweep
from tests.tiny import save_tiny, tiny_tokenizer

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the libraries
    pytest.mark.slow,
]


def config_of(kind: str) -> Any:
    """Return how a library quantises; skip the test where it is not installed."""
    import transformers

    pytest.importorskip(kind.partition("-")[0])
    if kind == "torchao-Int8WeightOnly":
        from torchao.quantization import Int8WeightOnlyConfig

        return transformers.TorchAoConfig(Int8WeightOnlyConfig())
    if kind == "bitsandbytes-4bit":
        return transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    return transformers.BitsAndBytesConfig(load_in_8bit=True)


def quantised(folder: Path, kind: str, **shape: int) -> Path:
    """Save a tiny model as ``base``, and quantised as ``small``; return its folder."""
    base = save_tiny(folder / "base", **shape)
    model = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=config_of(kind), dtype=torch.float32, device_map="cpu"
    )
    model.save_pretrained(folder / "small")
    tiny_tokenizer().save_pretrained(folder / "small")
    return folder / "small"


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("torchao-Int8WeightOnly", True),
        ("bitsandbytes-4bit", True),
        ("bitsandbytes-8bit", False),  # a row's result depends on the other rows
    ],
)
def test_a_quantised_model_is_measured_as_it_is(kind, shares, docs, tmp_path, ropewalk):
    small = quantised(tmp_path, kind, hidden_size=64, intermediate_size=64)
    ended = ropewalk(*sweep(small, docs, tmp_path / "run", task=["perplexity:tail=16"]))
    assert ended.status == 0, ended.err
    record = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert (record["name"], record["quantized"]) == (f"small-{kind}", kind)
    checkpoint = opened(small, None)
    assert shareable(ready(checkpoint)) is shares
    spread = opened(small, None, device="auto", device_map="auto")
    assert spread.fingerprint == checkpoint.fingerprint
    both = opened(small, save(tmp_path / "base", tmp_path / "lora"))
    assert not both.adapter.merge
    assert shareable(ready(both)) is shares


def test_four_bits_count_as_half_a_byte(tmp_path):
    """What is kept in memory is estimated as the library holds it, and not as float32."""
    small = quantised(tmp_path, "bitsandbytes-4bit", hidden_size=256, intermediate_size=512)
    found, whole = opened(small, None), opened(tmp_path / "base", None)
    layers = ready(whole).model.layers.modules()
    linear = sum(m.weight.numel() for m in layers if isinstance(m, torch.nn.Linear))
    for one, wanted in (
        (whole, 4 * whole.parameter_count),
        (found, 4 * (whole.parameter_count - linear) + linear // 2),
    ):
        assert wanted <= one.weight_bytes < wanted + 1000  # with the rotary embedding's frequencies
    assert found.parameter_count == whole.parameter_count
