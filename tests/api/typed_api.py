"""What a type checker sees of the public names: mypy checks this file, nothing runs it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, assert_type

import pandas as pd
from matplotlib.figure import Figure

import ropewalk as rw


def half(rope: rw.Rope, length: int) -> rw.Frequencies:
    return rw.Frequencies(rope.inv_freq() / rope.stretch(length))


def notebook(model: Any, tokenizer: Any) -> None:
    rope = assert_type(rw.rope_of(model.config), rw.Rope)
    rotation: rw.Rotation = rw.methods.yarn(rope, 16384, factor=4)
    patch: AbstractContextManager[Any] = rw.patched(model, rotation)
    with patch:
        model.generate()
    run = assert_type(rw.run(model, tokenizer=tokenizer, scaling=["none", half]), rw.Run)
    assert_type(run.folders, tuple[Path, ...])
    assert_type(run.frame(), pd.DataFrame)
    assert_type(run.report("curves"), pd.DataFrame | Figure)
    assert_type(rw.frame("results/reference"), pd.DataFrame)
    found = rw.recommend(model, tokenizer=tokenizer, length="4x")
    assert_type(found, rw.Recommendation | None)
    assert found is not None  # it is no dry run
    assert_type(found.table, pd.DataFrame)
    assert all(part.verdict == "passed" for part in rw.doctor("my-model", length="4x"))
    question = rw.Loglikelihood([1, 2, 3], 1, doc_id="book")
    for _, answer in rw.answers(model, [question]):
        assert isinstance(answer, rw.LoglikelihoodResponse)
        assert_type(answer.nll, tuple[float, ...])
