"""The training of the reference model and of the laboratory's, which is repeatable."""

from collections.abc import Iterator
from random import Random

import pandas as pd
import pytest

from ropewalk.harness.data.documents import held_out
from ropewalk.harness.errors import UserError
from scripts import _training, train
from scripts._training import Recipe
from tests.tiny import tiny_tokenizer

pytestmark = pytest.mark.slow


def runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield every three consecutive lines of 60 characters or more, less their indentation."""
    lines = [line.strip() for line in text.splitlines()]
    for run in zip(lines, lines[1:], lines[2:], strict=False):
        if len("".join(run)) >= 60:
            yield run


def test_training_shares_no_passage_with_held_out():
    tests, texts = dict(held_out()), dict(_training.training())
    assert len(texts) > 200
    assert not set(texts) & set(tests)
    seen = {run for text in tests.values() for run in runs(text)}
    assert [name for name, text in texts.items() if not seen.isdisjoint(runs(text))] == []


def documents() -> list[tuple[str, str]]:
    draw = Random("texts")
    words = ["alpha", "beta", "gamma", "delta", "1", "27", "\n"]
    return [(str(n), " ".join(draw.choices(words, k=1500))) for n in range(3)]


RECIPE = Recipe(steps=4, window=300, rows=2, vocabulary=300, width=128, layers=1, mlp=32)


def test_a_training_again_gives_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(_training, "held_out", documents)
    monkeypatch.setattr(_training, "WATCHED", 4)
    monkeypatch.setattr(train, "PLAIN", RECIPE)
    monkeypatch.setattr(train, "training", documents)
    monkeypatch.setattr(train.AutoTokenizer, "from_pretrained", lambda _: tiny_tokenizer())
    for out in ("first", "second"):
        train.encodings("kerple", "rope", steps=4, out=tmp_path / out)
    train.encodings("rope", steps=4, out=tmp_path / "first")  # it is there already
    with pytest.raises(UserError, match="a model of another file or recipe"):
        train.encodings("rope", steps=5, out=tmp_path / "first")
    train.table(tmp_path / "first", tmp_path / "second", out=tmp_path / "trainings.csv", rounds=1)
    table = pd.read_csv(tmp_path / "trainings.csv").set_index(["training", "model"])
    assert table["weights"]["first"].equals(table["weights"]["second"])
    assert list(table["of the encoding"]["first"]) == [2 * 4, 0]
    assert (table.filter(like="relative to rope").xs("rope-seed1", level="model") == 1).all(
        axis=None
    )


def test_the_weights_of_the_loss_are_those_of_the_study():
    """Answers weigh 8 times as much as text, the standard filler 0.2, a span's first copy 0.1."""
    texts = _training.read_texts(tiny_tokenizer(), documents(), 300)
    draw = Random("weights")
    prompts = [_training.passkey_row(texts.source, RECIPE, texts.least, draw) for _ in range(8)]
    assert {weight for row in prompts for weight in row.weights} == {1.0, 0.2, 8.0}
    spans = [_training.span_row(texts.source, RECIPE, draw) for _ in range(8)]
    assert {weight for row in spans for weight in row.weights} == {0.1, 1.0}
    assert {*_training.text_row(texts.source, 300, draw).weights} == {1.0}
