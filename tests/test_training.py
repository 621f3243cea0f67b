"""The training of the reference model: repeatable and resumable."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from harness.data.source import make_source
from tasks._prompt import frame
from tests.tiny import tiny_tokenizer

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the script as Python does when it is run."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import train_reference

    monkeypatch.setattr(train_reference, "held_out", documents)  # watched, and soon read
    yield train_reference
    for name in ("train_reference", "_mixture"):
        sys.modules.pop(name, None)


def documents() -> list[tuple[str, str]]:
    draw = Random("texts")
    words = ["alpha", "beta", "gamma", "delta", "1", "27", "\n"]
    return [(str(n), " ".join(draw.choices(words, k=1500))) for n in range(3)]


def recipe(scripts: Any) -> Any:
    return scripts.Recipe(steps=4, window=400, rows=8, vocabulary=300, width=128, layers=1, mlp=64)


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_weights(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after its first checkpoint and started again, it ends at the same bits."""
    whole = recipe(scripts)
    scripts.train(whole, documents(), tmp_path / "whole", every=2)
    batch = scripts.batch

    def stop_at_three(*given: Any) -> Any:
        if given[-1] == 3:
            raise KeyboardInterrupt
        return batch(*given)

    monkeypatch.setattr(scripts, "batch", stop_at_three)
    with pytest.raises(KeyboardInterrupt):
        scripts.train(whole, documents(), tmp_path / "killed", every=2)
    monkeypatch.setattr(scripts, "batch", batch)
    scripts.train(whole, documents(), tmp_path / "killed", every=2)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_checkpoint_of_another_recipe_is_not_gone_on_with(scripts: Any, tmp_path: Path) -> None:
    """Other settings in the same folder are refused."""
    short = scripts.Recipe(**{**vars(recipe(scripts)), "steps": 1})
    scripts.train(short, documents(), tmp_path, every=1)
    with pytest.raises(SystemExit, match="holds a run of another recipe"):
        scripts.train(recipe(scripts), documents(), tmp_path)


def test_a_batch_is_a_function_of_its_step(scripts: Any) -> None:
    """Every row fills the window; prompts end inside it; the same step gives the same rows."""
    settings = recipe(scripts)
    source = make_source(tiny_tokenizer(), documents, settings.window)
    least = sum(map(len, frame(source, 10_000)))
    tokens, weights = scripts.batch(source, settings, least, 3)
    assert tokens.shape == weights.shape == (8, 400)
    assert (tokens[:, 0] == source.bos).all()
    again, _ = scripts.batch(source, settings, least, 3)
    other, _ = scripts.batch(source, settings, least, 4)
    assert torch.equal(tokens, again)
    assert not torch.equal(tokens, other)
