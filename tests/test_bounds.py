"""How large a plan may be: what is more is refused with the numbers, and soon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.sweep import bounds
from harness.sweep.parse import parse
from harness.sweep.plan import make_plan
from tasks._types import Passage, Question
from tests.tiny import save_tiny


def refused(**given: Any) -> str:
    """Return the sentence a sweep is refused with."""
    with pytest.raises(UserError) as caught:
        make_plan(parse(None, given))
    return str(caught.value)


@pytest.mark.parametrize("length", ["999999999999", "1000000x"])
def test_a_length_has_a_bound(tiny: Path, length: str) -> None:
    """No prompt of a million million tokens is begun."""
    told = refused(model=str(tiny), task=("passkey",), length=(length,))
    assert length in told
    assert f"{bounds.LENGTH:,}" in told


def test_a_length_of_no_token_is_refused(tiny: Path) -> None:
    """A thousandth of a window of 64 tokens is none."""
    assert "0 tokens" in refused(model=str(tiny), length=("0.001x",))


def test_cells_have_a_bound() -> None:
    """Methods x tasks x lengths are counted before a model is opened."""
    grid = tuple(f"pi:factor={factor}" for factor in range(1, 1001))
    lengths = tuple(str(length) for length in range(1, 101))
    told = refused(model="absent", scaling=grid, length=lengths)
    assert "1,000 methods x 2 tasks x 100 lengths are 200,000 cells" in told


def test_trials_have_a_bound(tiny: Path) -> None:
    """A number of twenty digits is refused at once."""
    task = f"passkey:trials={10**20 - 1}"
    assert "10000 trials" in refused(model=str(tiny), task=(task,), length=("8x",))


def test_questions_have_a_bound(tiny: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that asks without end is stopped, with the number."""
    monkeypatch.setattr(bounds, "QUESTIONS", 50)
    task = ("perplexity:protocol=overlap,stride=1",)
    assert "more than 50 questions" in refused(model=str(tiny), docs=str(docs), task=task)


def test_tokens_that_are_kept_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows on one text count its tokens once, prompts each their own."""
    monkeypatch.setattr(bounds, "HELD", 100)
    text, tally = Passage("book", range(90)).tokens, bounds.Tally()
    for first in range(40):
        tally.add(Question("window", 50, text[first : first + 50], 1))
    with pytest.raises(UserError, match="more than 100 tokens"):
        tally.add(Question("prompt", 50, range(50), 1))


def test_a_window_is_not_negative(tmp_path: Path) -> None:
    """A config with a negative window is refused by its field."""
    folder = save_tiny(tmp_path / "negative", max_position_embeddings=-64)
    assert "trained length" in refused(model=str(folder))


def test_a_sweep_file_is_a_regular_file(tmp_path: Path) -> None:
    """A pipe is not waited for, and a device without end is not read."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for file in (pipe, Path("/dev/zero")):
        with pytest.raises(UserError, match="not a regular file"):
            parse(file, {})
