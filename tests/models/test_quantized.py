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


def measured(folder: Path, kind: str, docs: Path, ropewalk: Ropewalk) -> None:
    """Measure the checkpoint ``small``, and find its kind in the record and in a table."""
    ended = ropewalk(*sweep(folder / "small", docs, folder / "run", task=["perplexity:tail=16"]))
    assert ended.status == 0, ended.err
    record = json.loads((folder / "run" / "run.json").read_text())["model"]
    assert (record["name"], record["quantized"]) == (f"small-{kind}", kind)
    assert f"small-{kind}" in (folder / "run" / "reports" / "report.md").read_text()


@pytest.mark.parametrize(
    ("config", "kind", "shares"),
    [
        (int8, "torchao-Int8WeightOnly", True),
        (nf4, "bitsandbytes-4bit", True),
        (llm_int8, "bitsandbytes-8bit", False),  # a row's result depends on the other rows
    ],
)
def test_a_quantised_model_is_measured_as_it_is(config, kind, shares, docs, tmp_path, ropewalk):
    base = save_tiny(tmp_path / "base", hidden_size=64, intermediate_size=64)
    model = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=config(), dtype=torch.float32, device_map="cpu"
    )
    model.save_pretrained(tmp_path / "small")
    tiny_tokenizer().save_pretrained(tmp_path / "small")
    measured(tmp_path, kind, docs, ropewalk)
    checkpoint = opened(tmp_path / "small", None)
    assert shareable(ready(checkpoint)) is shares
    spread = opened(tmp_path / "small", None, device="auto", device_map="auto")
    assert spread.fingerprint == checkpoint.fingerprint
    adapter = save(base, tmp_path / "lora")
    told = json.loads((adapter / "adapter_config.json").read_text())
    told["base_model_name_or_path"] = "small"
    (adapter / "adapter_config.json").write_text(json.dumps(told))
    both = opened(tmp_path / "small", adapter)
    assert not both.adapter.merged
    assert shareable(ready(both)) is shares


def test_four_bits_count_as_half_a_byte(tmp_path):
    """What is kept in memory is estimated as the library holds it, and not as float32."""
    shape = {"hidden_size": 256, "intermediate_size": 512}
    base = save_tiny(tmp_path / "base", **shape)
    model = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=nf4(), dtype=torch.float32, device_map="cpu"
    )
    model.save_pretrained(tmp_path / "small")
    tiny_tokenizer().save_pretrained(tmp_path / "small")
    found, whole = (opened(tmp_path / name, None) for name in ("small", "base"))
    linear = sum(m.weight.numel() for m in whole_of(base).model.layers.modules()
                 if isinstance(m, torch.nn.Linear))  # fmt: skip
    assert whole.weight_bytes == 4 * whole.parameter_count
    wanted = 4 * (whole.parameter_count - linear) + linear // 2
    assert wanted <= found.weight_bytes < wanted + 1000  # with the angles of the rotary embedding
    assert found.parameter_count == whole.parameter_count


def whole_of(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
