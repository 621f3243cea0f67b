"""A found method is a file: ``--scaling ./found.json`` reads it, alone and below another method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.plugins import entry, load, names_code
from scaling import log_n, yarn
from scaling.types import Frequencies, Rope

ROPE = Rope(8, 10_000.0, 64)


def written(folder: Path, table: object) -> str:
    path = folder / "found.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    return str(path)


def resolved(given: str) -> Frequencies:
    plugin = load("method", given)
    found = entry(plugin.module, "method")(ROPE, 256, **plugin.arguments)
    assert isinstance(found, Frequencies)
    return found


def test_a_file_names_a_method_with_its_options(tmp_path: Path) -> None:
    """Its numbers are that method's, its label is the file's name, the record has the options."""
    given = written(tmp_path, {"scaling": "yarn:beta_fast=16,factor=4", "score": 3.0})
    plugin = load("method", given)
    assert (plugin.label, plugin.given, plugin.options["beta_fast"]) == ("found", given, 16.0)
    wanted = yarn.frequencies(ROPE, 256, beta_fast=16.0, factor=4.0)
    assert resolved(given).fingerprint == wanted.fingerprint
    built = load("method", f"log_n:on={given}").arguments["on"]
    assert built(ROPE, 256).fingerprint == wanted.fingerprint
    assert not names_code("method", given)
    assert hasattr(log_n, "bands")


def test_a_file_holds_a_factor_for_every_channel(tmp_path: Path) -> None:
    """LongRoPE's two lists, as a server's config has them: the second beyond the window."""
    table = {"short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3, 4]}
    found = resolved(written(tmp_path, table))
    ratio = (ROPE.inv_freq() / found.inv_freq).tolist()
    assert ratio == pytest.approx([1, 2, 3, 4])


def test_code_that_a_file_names_is_known_before_it_runs(tmp_path: Path) -> None:
    """A file from anyone may name another file."""
    assert names_code("method", written(tmp_path, {"scaling": "./mine.py:kept=0.5"}))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("{", "cannot be read as JSON"),
        ({"score": 3.0}, "names no method"),
        ([1], "names no method"),
        ({"scaling": 3}, "names no method"),
        ({"scaling": "./found.json"}, "names no method"),
        ({"scaling": "yarn:beta=3"}, "has no option 'beta'"),
    ],
)
def test_a_file_that_names_nothing_is_refused(tmp_path: Path, table: object, words: str) -> None:
    """In a sentence that says what such a file holds."""
    with pytest.raises(UserError, match=words):
        load("method", written(tmp_path, table))


def test_options_behind_a_file_are_refused(tmp_path: Path) -> None:
    """They would have no effect."""
    with pytest.raises(UserError, match="leave out 'factor=2'"):
        load("method", f"{written(tmp_path, {'scaling': 'yarn'})}:factor=2")


def test_a_missing_file_is_refused() -> None:
    """By its name."""
    with pytest.raises(UserError, match=r"method file nowhere/found.json does not exist"):
        load("method", "nowhere/found.json")
