"""An adapter of PEFT on its base: the model that PEFT makes of both, or a sentence."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropewalk as rw
from ropewalk.harness.engine import answers, shareable
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.weights import load_weights
from ropewalk.tasks.types import Loglikelihood
from tests.adapters import opened, save
from tests.asking import own_losses
from tests.command_line import sweep
from tests.tiny import save_tiny

QUESTION = Loglikelihood(tuple(range(1, 97)), 1, doc_id="q")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(scope="module")
def adapters(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of an adapter of the tiny model by kind; each is made once."""
    place = tmp_path_factory.mktemp("adapters")

    def of(kind: str) -> Path:
        return place / kind if (place / kind).exists() else save(tiny, place / kind, kind)

    return of


def losses(model: Any) -> torch.Tensor:
    return torch.tensor(next(iter(answers(model, [QUESTION])))[1].nll)


def as_trained(base: Path, adapter: Path) -> torch.Tensor:
    from peft import PeftModel

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    return own_losses(model.eval(), QUESTION.tokens).float()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "dora", "whole", "ia3"])
def test_an_adapter_changes_the_model_as_peft_does(kind, tiny, adapters):
    """Merged, the losses are those of PEFT's own model to rounding, and far from the base's."""
    model = load_weights(opened(tiny, adapters(kind)))
    assert "peft" not in {type(module).__module__.partition(".")[0] for module in model.modules()}
    plain = losses(AutoModelForCausalLM.from_pretrained(tiny))
    wanted = as_trained(tiny, adapters(kind))
    torch.testing.assert_close(losses(model), wanted, rtol=1e-4, atol=1e-4)
    assert kind == "whole" or (losses(model) - plain).abs().max() > 0.1


@pytest.mark.filterwarnings("ignore:(Model has .tie_word|Setting .save_embedding):UserWarning")
@pytest.mark.parametrize("kind", ["head", "embedding", "both"])
def test_an_adapter_of_tied_embeddings_changes_what_it_was_trained_on(kind, tmp_path):
    """It is not merged into the matrix that both share: losses as trained, shared bit for bit."""
    base = save_tiny(tmp_path / "base", tie_word_embeddings=True)
    adapter = save(base, tmp_path / kind, kind)
    wanted = as_trained(base, adapter)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what PEFT says of tied layers is not for the user
        model = load_weights(opened(base, adapter))
    torch.testing.assert_close(losses(model), wanted, rtol=1e-4, atol=1e-4)
    assert shareable(model)


@pytest.mark.slow
def test_the_adapter_is_in_the_fingerprint(tiny, tmp_path):
    one, two = (save(tiny, tmp_path / str(seed), seed=seed) for seed in (0, 1))
    found = [opened(tiny, adapter).fingerprint for adapter in (None, one, two)]
    config = json.loads((one / "adapter_config.json").read_text())
    (one / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 99}))
    assert len({*found, opened(tiny, one).fingerprint}) == 4
    assert opened(tiny, two).label == "llama+1"


def _no_weights(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    torch.save(weights, folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        told = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(told | changes))

    return change


def _tensor(name: str, *shape: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        weights = load_file(folder / "adapter_model.safetensors")
        weights[f"base_model.model.{name}"] = torch.zeros(shape)
        save_file(weights, folder / "adapter_model.safetensors")

    return change


@pytest.mark.parametrize(("kind", "hurt", "words"), [
    ("lora", _no_weights, "no adapter_model.safetensors; .*--allow-pickle"),
    ("lora", _config(new_strength=2), "new_strength"),
    ("lora", _config(init_lora_weights="pissa"), r"changed weights of its base \(pissa\)"),
    ("lora", _config(target_modules=["absent"]), "absent"),
    ("lora", _config(target_modules=["q_proj", "k_proj", "v_proj"]), "missing .*k_proj"),
    ("lora", _tensor("model.layers.9.a.lora_A.weight", 4, 4), "has no place"),
    ("lora", shutil.rmtree, "lora cannot be read"),
    ("prefix", lambda _: None, "adds to the prompt"),
])  # fmt: skip
def test_what_does_not_fit_is_one_sentence(kind, hurt, words, tiny, tmp_path, adapters):
    folder = Path(shutil.copytree(adapters(kind), tmp_path / kind))
    hurt(folder)
    with pytest.raises(UserError, match=words) as refused:
        load_weights(opened(tiny, folder))
    assert len(str(refused.value)) < 600


def test_another_base_is_named(tiny, tmp_path, adapters, caplog):
    folder = Path(shutil.copytree(adapters("lora"), tmp_path / "lora"))
    opened(tiny, folder)
    assert not caplog.messages
    _config(base_model_name_or_path="nobody/llama-chat")(folder)
    opened(tiny, folder)
    assert f"names nobody/llama-chat as its base; the model is {tiny}" in caplog.text


def test_pickled_adapters_are_read_where_they_are_trusted(tiny, tmp_path, adapters):
    folder = Path(shutil.copytree(adapters("lora"), tmp_path / "lora"))
    plain = losses(load_weights(opened(tiny, folder)))
    _no_weights(folder)
    assert torch.equal(losses(load_weights(opened(tiny, folder, allow_pickle=True))), plain)


@pytest.mark.usefixtures("scored")
@pytest.mark.slow
def test_a_model_is_measured_with_and_without_its_adapter(tiny, docs, tmp_path, adapters, ropewalk):
    words = sweep(tiny, docs, tmp_path / "run", task=["perplexity:tail=16"], scaling=["pi"])
    done = ropewalk(*words, "--adapter", "none", adapters("lora"))
    assert done.status == 0, done.err
    records = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("run/*/run.json"))]
    assert [record["model"]["name"] for record in records] == ["llama", "llama+lora"]
    assert records[1]["model"]["adapter"]["kind"] == "LORA"
    assert records[0]["model"]["adapter"] is None
    scores = pd.read_csv(tmp_path / "run" / "reports" / "cells.csv")
    assert scores.groupby("length")["score"].nunique().eq(2).all()


def test_a_loaded_peft_model_is_given_as_base_and_adapter(tiny, adapters):
    from peft import PeftModel

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), adapters("lora"))
    with pytest.raises(UserError, match="give its base as model= and the folder as adapter="):
        rw.run(model=model.eval(), tokenizer=AutoTokenizer.from_pretrained(tiny))
