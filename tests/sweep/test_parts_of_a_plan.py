"""A part of a plan is measured by itself, and the parts of one model load its weights once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.api.run import measurer
from harness.runs.store import read_samples
from harness.sweep import backend
from harness.sweep.plan import Item, make_plan
from harness.sweep.rerun import plan_again
from harness.sweep.spec import parse


def test_parts_of_a_plan_load_the_weights_once(
    tiny: Path, docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []
    own = backend.ready

    def ready(checkpoint: Any) -> Any:
        loaded.append(checkpoint)
        return own(checkpoint)

    monkeypatch.setattr(backend, "ready", ready)
    given = {"model": str(tiny), "docs": str(docs), "scaling": ["none", "yarn"], "length": "4x",
             "task": "perplexity:tail=16"}  # fmt: skip
    plan, folder = make_plan(parse(None, given)), tmp_path / "run"
    keys = [Item(cell, question).key for cell in plan.cells for question in cell.questions]
    measure = measurer(plan, folder)
    for count in (2, 4):
        stored = list(measure(replace(plan, only=set(keys[:count]))))
        assert {(one["cell"], one["question"]) for one in stored} == set(keys[count - 2 : count])
        assert read_samples(folder).keys() == set(keys[:count])
    assert len(loaded) == 1
    again = plan_again(folder, tmp_path / "again", {})
    assert {item.key for item in again.left(set())} == set(keys[:4])
