"""Runs that are not comparable are not joined, unless told, and are then labelled."""

from pathlib import Path
from typing import Any

import pytest

from ropewalk.harness.runs.compatible import reasons
from tests.small_runs import changed


def task(**options: Any) -> dict[str, Any]:
    return {"metric": "perplexity", "options": {"protocol": "tail", "tail": 128, **options}}


def record(**changes: Any) -> dict[str, Any]:
    model = {"name": "a", "fingerprint": "f"}
    own = {"model": model, "seed": 0, "documents": read("x", 900), "tasks": {"perplexity": task()}}
    return own | changes


def read(sha256: str, tokens: int, name: str = "x.txt") -> dict[str, Any]:
    """Return the documents of a record: one."""
    return {"read": [{"name": name, "sha256": sha256, "tokens": tokens}]}


OTHER_MODEL = {"model": {"name": "b", "fingerprint": "g"}}
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
        ({"tasks": {"perplexity:tail=64": task(tail=64)}}, ["protocols"]),
        ({"tasks": {"perplexity": task(gained=False, named="")}}, []),  # by a later version
        ({"tasks": {"perplexity": task(gained=True)}}, ["protocols"]),
        ({"tasks": {"perplexity:tail=64": task(tail=64), "perplexity": task()}}, []),
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
    assert "have different documents; report them separately, or with" in done.err
    done = ropewalk(*words, "--mixed")
    assert (done.status, "Not comparable: " in done.out) == (0, True)
    page = (tmp_path / "o" / "cells.md").read_text()
    for text in ("have different documents", "llama (run)", "llama (second)"):
        assert text in page
