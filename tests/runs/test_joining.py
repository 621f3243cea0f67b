"""Runs that are not comparable are not joined, unless told, and are then labelled."""

from pathlib import Path
from typing import Any

import pytest

from ropewalk.harness.runs.compatible import reasons
from tests.small_runs import changed


def record(**changes: Any) -> dict[str, Any]:
    task = {"metric": "perplexity", "options": {"protocol": "tail", "tail": 128}}
    return {
        "model": {"name": "a", "fingerprint": "f"},
        "seed": 0,
        "documents": read("x", 900),
        "tasks": {"perplexity": task},
        **changes,
    }


def read(sha256: str, tokens: int, name: str = "x.txt") -> dict[str, Any]:
    """Return the documents of a record: one."""
    return {"read": [{"name": name, "sha256": sha256, "tokens": tokens}]}


def with_options(**more: Any) -> dict[str, Any]:
    task = record()["tasks"]["perplexity"]
    return {**task, "options": {**task["options"], **more}}


OTHER_MODEL = {"model": {"name": "b", "fingerprint": "g"}}
TAIL_64 = {"metric": "perplexity", "options": {"protocol": "tail", "tail": 64}}
KEYS = {"passkey": {"metric": "accuracy", "options": {}}}


@pytest.mark.parametrize(
    ("changes", "aspects"),
    [
        ({}, []),
        (OTHER_MODEL, []),
        ({**OTHER_MODEL, "seed": 1}, []),
        ({"model": {"name": "a", "fingerprint": "g"}}, ["models (fingerprint)"]),
        ({"seed": 1}, ["seeds"]),
        ({**OTHER_MODEL, "documents": read("y", 900)}, ["documents"]),
        ({**OTHER_MODEL, "documents": {"read": []}}, []),
        ({**OTHER_MODEL, "documents": read("x", 700)}, ["tokenizers"]),
        ({**OTHER_MODEL, "documents": read("x", 7), "tasks": KEYS}, []),
        ({"documents": read("x", 900, "y.txt")}, ["names of documents"]),
        ({"tasks": {"perplexity:tail=64": TAIL_64}}, ["protocols"]),
        ({"tasks": {"perplexity": with_options(gained=False, named="")}}, []),  # by a later version
        ({"tasks": {"perplexity": with_options(gained=True)}}, ["protocols"]),
        ({"tasks": {"perplexity:tail=64": TAIL_64, **record()["tasks"]}}, []),
    ],
)
def test_what_is_comparable(changes, aspects):
    """Models, machines and days may differ; weights of one name, texts, tokens, protocols not."""
    runs = {Path("one"): record(), Path("two"): record(**changes)}
    assert reasons(runs) == [f"one and two have different {aspect}" for aspect in aspects]


def test_mixed_runs_stand_apart_and_say_so(run, tmp_path, ropewalk):
    second = changed(run, tmp_path / "second", lambda r: r["documents"]["read"].pop())
    words = ["report", run, second, "--report", "cells", "--out", tmp_path / "o"]
    done = ropewalk(*words)
    assert done.status == 2
    assert "have different documents; report them separately, or with" in done.err
    done = ropewalk(*words, "--mixed")
    assert (done.status, "Not comparable: " in done.out) == (0, True)
    page = (tmp_path / "o" / "cells.md").read_text()
    assert "have different documents" in page
    assert "llama (run)" in page
    assert "llama (second)" in page
