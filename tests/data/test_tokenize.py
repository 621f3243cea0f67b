"""Tokens of long texts are stored on disk, and are those of the text."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from huggingface_hub import constants

from ropewalk.harness.data import tokenize as tokenizing
from ropewalk.harness.data.tokenize import make_reader, tokenize
from tests.tiny import tiny_tokenizer


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path))
    monkeypatch.setattr(tokenizing, "LEAST", 100)


@pytest.fixture
def text() -> str:
    return "".join(Random(1).choices("abc …", k=500))


def test_a_text_is_tokenized_once(text, monkeypatch):
    first = make_reader(tiny_tokenizer())(text)
    assert first == tokenize(tiny_tokenizer(), text)
    fail: Callable[..., None] = lambda *_: pytest.fail("tokenized again")  # noqa: E731
    monkeypatch.setattr(tokenizing, "tokenize", fail)
    assert make_reader(tiny_tokenizer())(text) == first


def test_texts_and_tokenizers_are_kept_apart(text, tmp_path):
    other = tiny_tokenizer()
    other.add_tokens(["abc"])
    one, two = make_reader(tiny_tokenizer()), make_reader(other)
    assert one(text) != two(text)
    assert one("short") == two("short")
    assert len(list(tmp_path.rglob("*.npy"))) == 2


def test_a_file_that_is_not_whole_is_written_anew(text, tmp_path):
    right = make_reader(tiny_tokenizer())(text)
    (file,) = tmp_path.rglob("*.npy")
    whole = file.read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        assert make_reader(tiny_tokenizer())(text) == right
        assert file.read_bytes() == whole
    assert [path.suffix for path in file.parent.iterdir()] == [".npy"]
