"""A model larger than one device: layers in memory and on disk, the same numbers bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.command_line import samples, sweep

ROOM = 0.75  # of a model's bytes, for which there is memory
SETTINGS = {
    "task": ["perplexity:tail=16", "passkey:depths=2,trials=1"],
    "scaling": ["none", "yarn", "rerope"],
    "length": ["5x"],
}


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let this machine have memory for a part of a model; return the models that are loaded."""
    loaded: list[Any] = []
    whole = AutoModelForCausalLM.from_pretrained

    def partly(*words: Any, **options: Any) -> Any:
        if options.get("device_map") == "auto":
            size = (Path(words[0]) / "model.safetensors").stat().st_size
            options["max_memory"] = {"cpu": int(ROOM * size), "disk": 10**9}
        found = whole(*words, **options)
        if found[0].device.type != "meta" or options.get("device_map") == "auto":
            loaded.append(found[0])  # and not where only names and shapes are read
        return found

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", partly)
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_layers_on_disk_change_no_bit(family, saved, docs, tmp_path, ropewalk, spread):
    settings = {**SETTINGS, "scaling": SETTINGS["scaling"][: 3 if family == "llama" else 2]}
    words = sweep(saved(family), docs, tmp_path / "plain", **settings)
    assert ropewalk(*words).status == 0
    assert not hasattr(spread.pop(), "hf_device_map")
    words = [word for word in words if word not in ("--device", "cpu")]
    words[words.index(str(tmp_path / "plain"))] = str(tmp_path / "spread")
    done = ropewalk(*words, "--device-map", "auto")
    assert done.status == 0, done.err
    (model,) = spread
    assert {str(place) for place in model.hf_device_map.values()} == {"cpu", "disk"}
    assert any(parameter.device.type == "meta" for parameter in model.parameters())
    assert model.device == torch.device("cpu")
    assert samples(tmp_path / "spread") == samples(tmp_path / "plain")
