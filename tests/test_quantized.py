"""Checkpoints that a library quantised: measured by its own layers, and named for their kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from harness.engine import shareable
from harness.sweep.answer import ready
from tests.adapters import opened, save
from tests.command_line import Ropewalk, sweep
from tests.tiny import save_tiny, tiny_tokenizer

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the libraries
    pytest.mark.slow,
]


def int8() -> Any:
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def nf4() -> Any:
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")


def llm_int8() -> Any:
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_8bit=True)


@pytest.mark.parametrize(
    ("config", "kind", "shares"),
    [
        (int8, "torchao-Int8WeightOnly", True),
        (nf4, "bitsandbytes-4bit", True),
        (llm_int8, "bitsandbytes-8bit", False),  # a row's result depends on the other rows
    ],
)
def test_a_quantised_model_is_measured_as_it_is(
    config: Callable[[], Any], kind: str, shares: bool, docs: Path, tmp_path: Path,
    ropewalk: Ropewalk,
) -> None:  # fmt: skip
    """The patch is proved on it; what it shares is tried; an adapter on it is not merged."""
    base = save_tiny(tmp_path / "base", hidden_size=64, intermediate_size=64)
    model = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=config(), dtype=torch.float32, device_map="cpu"
    )
    model.save_pretrained(tmp_path / "small")
    tiny_tokenizer().save_pretrained(tmp_path / "small")
    words = sweep(tmp_path / "small", docs, tmp_path / "run", task=["perplexity:tail=16"])
    ended = ropewalk(*words)
    assert ended.status == 0, ended.err
    record = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert (record["name"], record["quantized"]) == (f"small-{kind}", kind)
    assert f"small-{kind}" in (tmp_path / "run" / "reports" / "scores.md").read_text()
    checkpoint = opened(tmp_path / "small", None)
    assert shareable(ready(checkpoint)) is shares
    spread = opened(tmp_path / "small", None, device="auto", device_map="auto")
    assert spread.fingerprint == checkpoint.fingerprint
    adapter = save(base, tmp_path / "lora")
    told = json.loads((adapter / "adapter_config.json").read_text())
    told["base_model_name_or_path"] = "small"
    (adapter / "adapter_config.json").write_text(json.dumps(told))
    both = opened(tmp_path / "small", adapter)
    assert both.adapter is not None
    assert not both.adapter.merged
    assert shareable(ready(both)) is shares
