"""Encodings and configs that are wrong: each fault is a sentence, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.encodings._config import config_of
from harness.encodings._model import EncodingForCausalLM
from tests.command_line import Ropewalk
from tests.tiny import tiny_tokenizer

BEGUN = '''
"""Mine."""
import torch
from torch import nn


class Encoding(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.window = shape.window
'''
TURNED = "    def turn(self, query, key, angles, positions):\n        return query, key\n"
SQUARE = """
    def scores(self, layer, query, key, places):
        count = len(places.query)
        return torch.zeros(2, count, count)
"""
SHORT = """
    def inputs(self, embedded, positions):
        if len(positions[0]) > self.window:
            raise ValueError("only short texts are read")
        return embedded
"""
SLICED = """
        self.table = nn.Parameter(torch.randn(shape.window, shape.width))

    def inputs(self, embedded, positions):
        return embedded + self.table[int(positions.min()) : int(positions.max()) + 1]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("None", "not of type NoneType"),
        ("'ten'", "not of type str"),
        ("nn.Parameter(torch.tensor(1e4))", "not of type Parameter"),
        ("float('nan')", "got nan"),
    ],
)
def test_a_base_that_is_no_number_is_refused(
    base: str, told: str, file: Path, ropewalk: Ropewalk
) -> None:
    """By the check as a finding, by a figure as an error: what was given and what is allowed."""
    file.write_text(f"{BEGUN}        self.base = {base}\n\n{TURNED}", encoding="utf-8")
    sentence = f"encoding mine: base must be a number from 1 to 3.4e38, {told}."
    done = ropewalk("check", file)
    assert done.status == 1
    assert f"✗ runs  {sentence}" in done.out
    drawn = ropewalk("inspect", "--scaling", "none", "--length", "1x", "--encoding", file)
    assert drawn.status == 2
    assert sentence in drawn.err


def test_scores_of_as_many_queries_as_keys_fail_where_a_cache_is_read(
    file: Path, ropewalk: Ropewalk
) -> None:
    """What fails is named, and what is tested after it is told too."""
    file.write_text(BEGUN + SQUARE, encoding="utf-8")
    done = ropewalk("check", file)
    assert done.status == 1
    assert "✗ cache   encoding" in done.out
    assert "must match the size" in done.out
    assert "· beyond  a text of two windows is read" in done.out


@pytest.mark.parametrize(
    ("part", "told"), [(SHORT, "only short texts are read."), (SLICED, "RuntimeError: ")]
)
def test_any_error_past_the_window_says_that_no_longer_text_is_read(
    part: str, told: str, file: Path, ropewalk: Ropewalk
) -> None:
    """As of a table's IndexError it is a note, not a failure; it has the encoding's own words."""
    file.write_text(BEGUN + part, encoding="utf-8")
    done = ropewalk("check", file)
    assert done.status == 0
    assert f"· beyond  no text longer than the trained window is read: {told}" in done.out


def trained(trained_with: str, to: Path, **changed: object) -> Path:
    """Save a small model of an encoding, with other fields in its config."""
    model = EncodingForCausalLM(config_of(trained_with, vocab_size=300, num_hidden_layers=1))
    model.save_pretrained(to)
    tiny_tokenizer().save_pretrained(to)
    config = json.loads((to / "config.json").read_text(encoding="utf-8")) | changed
    (to / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return to


@pytest.mark.parametrize("typed", ["nonsense", "", "ropes:base=100"])
def test_an_unknown_encoding_of_a_config_is_named_beside_those_there_are(
    typed: str, tmp_path: Path, ropewalk: Ropewalk
) -> None:
    """A typo is no code beside the weights: to trust the model would not help."""
    folder = trained("alibi", tmp_path / "model", encoding=typed)
    done = ropewalk("run", "--model", folder, "--scaling", "none", "--out", tmp_path / "out")
    assert done.status == 2
    name = typed.partition(":")[0]
    assert f"the config of {folder}: no encoding is called {name!r};" in done.err
    assert "known: alibi, deberta," in done.err
    assert "trust" not in done.err


def test_a_rotary_encoding_without_rope_parameters_is_refused(
    tmp_path: Path, ropewalk: Ropewalk
) -> None:
    """When the model is opened, not sample by sample; the sentence says what to write."""
    folder = trained("rope:base=500", tmp_path / "model", rope_parameters=None)
    done = ropewalk("run", "--model", folder, "--scaling", "none", "--out", tmp_path / "out")
    assert done.status == 2
    assert f"the config of {folder} lacks rope_parameters" in done.err
    assert '"rope_parameters": {"rope_theta": 500.0}.' in done.err


def test_inspect_says_which_encoding_a_model_has_that_does_not_rotate(
    tmp_path: Path, ropewalk: Ropewalk
) -> None:
    """Of the laboratory's models some rotate: the sentence is on this one, and on --encoding."""
    folder = trained("alibi", tmp_path / "model")
    done = ropewalk("inspect", "--model", folder)
    assert done.status == 2
    assert f"{folder} has the encoding alibi and no rotary embedding" in done.err
    assert f"ropewalk inspect --encoding {folder} --out FOLDER." in done.err
    assert ropewalk("inspect", "--model", trained("rope", tmp_path / "rotary")).status == 0


def test_check_tests_all_of_a_name(ropewalk: Ropewalk) -> None:
    """The method none and the encoding none, as ``list none`` tells of both; each says its kind."""
    done = ropewalk("check", "none")
    assert done.status == 0
    assert "method none: passed" in done.out
    assert "encoding none: passed" in done.out
    assert "· order   one layer does not tell the order of tokens" in done.out
