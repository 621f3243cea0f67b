"""The training of the reference model and of the laboratory's: repeatable and resumable."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from ropewalk.harness.commands.new import new
from ropewalk.harness.data.embedded import held_out
from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.store import runs_in
from tests import ROOT
from tests.tiny import tiny_tokenizer

pytestmark = pytest.mark.slow
SCRIPTS = ROOT / "scripts"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import _training
    import train_encodings
    import train_reference

    monkeypatch.setattr(_training, "held_out", documents)
    monkeypatch.setattr(_training, "WATCHED", 4)
    monkeypatch.setattr(train_encodings, "EVERY", 2)
    monkeypatch.setattr(train_encodings, "training", documents)
    monkeypatch.setattr(
        train_encodings.AutoTokenizer, "from_pretrained", lambda _: tiny_tokenizer()
    )
    monkeypatch.setattr(train_encodings, "PLAIN", recipe(train_reference))
    yield train_reference
    for name in ("train_reference", "train_encodings", "_training"):
        sys.modules.pop(name, None)


def runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield every three consecutive lines of 60 characters or more, less their indentation."""
    lines = [line.strip() for line in text.splitlines()]
    for run in zip(lines, lines[1:], lines[2:], strict=False):
        if len("".join(run)) >= 60:
            yield run


def test_training_shares_no_passage_with_held_out(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from _texts import training

    tests, texts = dict(held_out()), dict(training())
    assert len(texts) > 200
    assert not set(texts) & set(tests)
    seen = {run for text in tests.values() for run in runs(text)}
    assert [name for name, text in texts.items() if not seen.isdisjoint(runs(text))] == []


def documents() -> list[tuple[str, str]]:
    draw = Random("texts")
    words = ["alpha", "beta", "gamma", "delta", "1", "27", "\n"]
    return [(str(n), " ".join(draw.choices(words, k=1500))) for n in range(3)]


def recipe(scripts: Any) -> Any:
    return scripts.Recipe(steps=4, window=300, rows=2, vocabulary=300, width=128, layers=1, mlp=32)


@contextmanager
def stopping_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import _training

    batch = _training.batch

    def stop(*given: Any) -> Any:
        if given[-1] == step:
            raise KeyboardInterrupt
        return batch(*given)

    monkeypatch.setattr(_training, "batch", stop)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        monkeypatch.setattr(_training, "batch", batch)
    pytest.fail(f"it did not come to step {step}")


def check_equal(one: Path, other: Path) -> None:
    found, wanted = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in found)


def test_the_models_of_the_laboratory_are_trained_alike(scripts, tmp_path, monkeypatch):
    import train_encodings

    del scripts
    asked = {"encodings": ["kerple", "rope"]}
    train_encodings.main(**asked, out=tmp_path / "whole")
    with stopping_at(3, monkeypatch):
        train_encodings.main(**asked, out=tmp_path / "killed")
    train_encodings.main(**asked, out=tmp_path / "killed")
    for name in ("kerple-seed1", "rope-seed1"):
        check_equal(tmp_path / "whole" / name, tmp_path / "killed" / name)
    records = [json.loads((tmp_path / folder / "kerple-seed1/training.json").read_text())
               for folder in ("whole", "killed")]  # fmt: skip
    assert records[0]["weights"] == records[1]["weights"]
    assert records[0]["of_the_encoding"] == 2 * 4
    assert [point["step"] for point in records[0]["curve"]] == [2, 4]
    assert not (tmp_path / "whole" / "rope-seed1" / "checkpoint.pt").exists()
    train_encodings.table(tmp_path / "whole", out=tmp_path / "trainings.csv", rounds=1)
    table = pd.read_csv(tmp_path / "trainings.csv").set_index("model")
    assert list(table["of the encoding"]) == [2 * 4, 0]
    assert table.loc["rope-seed1"].filter(like="relative to rope").tolist() == [1, 1, 1]
    with stopping_at(0, monkeypatch):  # a second seed is new, the first is there
        train_encodings.main(**asked, seeds=2, out=tmp_path / "whole")
    with pytest.raises(UserError, match="models of 4 steps"):
        train_encodings.main(**asked, steps=5, out=tmp_path / "whole")
    with pytest.raises(UserError, match="steps, trained with passkey prompts"):
        train_encodings.main(**asked, passkeys=False, out=tmp_path / "whole")
    with pytest.raises(UserError, match="no encoding is called 'rop'"):
        train_encodings.main(encodings=["rop"], out=tmp_path / "new")


@pytest.mark.parametrize("passkeys", [True, False])
def test_a_quarter_of_the_rows_are_passkey_prompts_or_none_is(scripts, passkeys):
    import _training

    tokenizer = tiny_tokenizer()
    texts = _training.read_texts(tokenizer, documents(), 300)
    eight = replace(recipe(scripts), rows=8, passkeys=passkeys)
    tokens, _ = _training.batch(texts.source, eight, texts.least, 0)
    prompts = ["pass key" in tokenizer.decode(row) for row in tokens]
    assert sum(prompts) == (2 if passkeys else 0)


def test_the_weights_of_the_loss_are_those_of_the_study(scripts):
    import _training

    study = ROOT / "results" / "encodings"
    text = " ".join((study / "README.md").read_text(encoding="utf-8").split())
    told = re.search(
        r"the tokens of an answer weigh (\S+) times as much as text, those of the standard filler "
        r"(\S+) and those of a span's first copy (\S+)\. ", text
    )  # fmt: skip
    assert told
    answer, filler, first = map(float, told.groups())
    texts, mine = _training.read_texts(tiny_tokenizer(), documents(), 300), recipe(scripts)
    draw = Random("weights")
    prompts = [_training.passkey_row(texts.source, mine, texts.least, draw) for _ in range(8)]
    assert {weight for row in prompts for weight in row.weights} == {1.0, filler, answer}
    spans = [_training.span_row(texts.source, mine, draw) for _ in range(8)]
    assert {weight for row in spans for weight in row.weights} == {first, 1.0}
    assert {*_training.text_row(texts.source, 300, draw).weights} == {1.0}


def test_a_changed_file_is_not_taken_for_the_trained_one(scripts, tmp_path):
    import train_encodings

    del scripts
    file, out = new("encoding", "mine", tmp_path), tmp_path / "out"
    source = file.read_text(encoding="utf-8")
    train_encodings.main(encodings=[str(file)], out=out)
    train_encodings.main(encodings=[str(file)], out=out)
    with pytest.raises(UserError, match="--trust-remote-code"):
        train_encodings.table(out, out=tmp_path / "study.csv", rounds=1)
    train_encodings.table(out, out=tmp_path / "study.csv", rounds=1, trust_remote_code=True)
    with pytest.raises(UserError, match="has no trained models"):
        train_encodings.table(tmp_path, out=tmp_path / "study.csv")
    file.write_text(source.replace("distance**0.5", "distance**0.6"), encoding="utf-8")
    with pytest.raises(UserError, match="another file"):
        train_encodings.main(encodings=[str(file)], out=out)


def test_a_checkpoint_of_another_recipe_is_not_gone_on_with(scripts, tmp_path):
    short = scripts.Recipe(**{**vars(recipe(scripts)), "steps": 1})
    scripts.train(short, documents(), tmp_path, every=1)
    with pytest.raises(UserError, match="holds a run of another recipe"):
        scripts.train(recipe(scripts), documents(), tmp_path)


def test_the_study_has_a_row_for_every_model():
    study = ROOT / "results" / "encodings"
    trained = pd.read_csv(study / "trainings.csv")[["training", "model"]]
    runs = [run.parts[-3:] for run in runs_in([study / "samples.parquet"])]
    for task in ("perplexity", "passkey"):
        measured = {run[::2] for run in runs if run[1] == task and "held" not in run[2]}
        assert measured == set(trained.itertuples(index=False, name=None)), task
