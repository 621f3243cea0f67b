"""What a user's code, or a model, that fails costs: its own cells, and a sentence."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from ropewalk.harness.engine import DEFAULT
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import open_checkpoint
from ropewalk.harness.patching import patch as machine
from ropewalk.harness.sweep.plan import Failed
from ropewalk.harness.sweep.this_process import ready, replies
from ropewalk.scaling import native
from ropewalk.tasks.types import Loglikelihood, LoglikelihoodResponse
from tests.command_line import MINE, Ropewalk, lines_of, samples, sweep, write_task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("scored")]

TASK = {"task": ["perplexity:tail=16"], "scaling": ["none"]}
PICKY = MINE.replace("    return", "    1 / (320 - length)\n    return")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tiny: Path, docs: Path, ropewalk: Ropewalk) -> Callable[..., Any]:
    """Return a small sweep into the folder ``run``."""
    return lambda *more, **changes: ropewalk(
        *sweep(tiny, docs, Path("run"), **{**TASK, **changes}), *more
    )


def statuses() -> dict[tuple[str, int], str]:
    """Return what the table says of every (scaling, length)."""
    table = pd.read_csv(Path("run") / "reports" / "cells.csv")
    return {(row.scaling, row.length): row.status for row in table.itertuples()}


def test_a_method_that_fails_at_one_length_fails_there_alone(run):
    Path("mine.py").write_text(PICKY)
    changes = {"scaling": ["none", "./mine.py:factor=2"]}
    told = (
        "scaling mine:factor=2 at length 320 failed: ZeroDivisionError: division by zero at "
        "mine.py:5."
    )
    done = run(**changes)
    assert done.status == 1
    assert f"\n  mine:factor=2, perplexity:tail=16, 320 tokens: {told} (3 samples)\n" in done.out
    assert statuses() == {
        ("none", 256): "ok", ("none", 320): "ok",
        ("mine:factor=2", 256): "ok", ("mine:factor=2", 320): "failed",
    }  # fmt: skip
    Path("mine.py").write_text(MINE)
    assert run(**changes).status == 0
    assert set(statuses().values()) == {"ok"}


def test_a_task_that_cannot_grade_a_sample_fails_it_alone(run):
    names = write_task(
        lambda text: text.replace(
            "    each =", '    1 / (request.doc_id != "document-1.txt")\n    each ='
        )
    )
    for attempt in (1, 2):  # it is measured again each time, and nothing else is
        done = run(task=names)
        told = "task mine:tail=16 failed: ZeroDivisionError: division by zero at "
        assert (done.status, f"  none, mine:tail=16, 320 tokens: {told}" in done.out) == (
            1,
            True,
        )
        lines = [line for line in lines_of(Path("run")) if line["status"] != "ok"]
        assert {(line["unit"], line["value"]) for line in lines} == {("document-1.txt", None)}
        assert len(lines) == 2 * attempt
    table = pd.read_csv(Path("run") / "reports" / "cells.csv")
    assert table["status"].tolist() == ["2 of 3 ok, 1 failed"] * 2 + ["ok"] * 2


def test_a_task_that_cannot_score_fails_its_cells_alone(run, ropewalk):
    before = "    return Score(*ratio"
    names = write_task(lambda text: text.replace(before, f"    1 / 0\n{before}"))
    for done in (run(task=names), ropewalk("report", "run", "--task", "./mine.py")):
        assert done.status == 1
        assert "failed: ZeroDivisionError: division by " in done.out
        table = pd.read_csv(Path("run") / "reports" / "cells.csv")
        assert table["status"].tolist() == ["failed"] * 2 + ["ok"] * 2
    assert {record["status"] for record in samples(Path("run")).values()} == {"ok"}


def test_a_model_that_fails_on_one_input_fails_there_alone(run, monkeypatch):
    answers = machine.answers

    def fails(model: Any, questions: Sequence[Any], **chunks: Any) -> Iterator[Any]:
        for index, answer in answers(model, questions, **chunks):
            if questions[index].doc_id == "document-1.txt":
                raise RuntimeError("index out of\nrange")
            yield index, answer

    with monkeypatch.context() as patch:
        patch.setattr(machine, "answers", fails)
        done = run()
    assert done.status == 1
    assert "none, perplexity:tail=16, 320 tokens: RuntimeError: index out of range" in done.out
    counts = [record["status"] for record in samples(Path("run")).values()]
    assert (counts.count("ok"), counts.count("failed")) == (4, 2)
    assert run().status == 0


@pytest.mark.parametrize("usable", [True, False])
def test_an_error_after_which_the_gpu_is_unusable_ends_the_run(usable, monkeypatch):
    """CUDA then fails every call; after another error the next question is measured."""

    def synchronize(_: Any) -> None:
        if not usable:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def fail(_module: Any, given: tuple[torch.Tensor]) -> None:
        if (given[0] == 9).any():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 0)
    opened = open_checkpoint("reference", device="cpu")
    model = ready(opened)
    model.get_input_embeddings().register_forward_pre_hook(fail)
    texts = {"bad": (5, 6, 9, 7), "good": (5, 6, 7, 8)}
    requests = {("c", key): Loglikelihood(text, 1, doc_id=key) for key, text in texts.items()}
    rotation = native.frequencies(opened.rope, 4)
    replied = replies(model, replace(opened, device="cuda"), rotation, requests, DEFAULT)
    if usable:
        outcomes = {key: reply.outcome for (_, key), reply in replied}
        assert isinstance(outcomes["bad"], Failed)
        assert isinstance(outcomes["good"], LoglikelihoodResponse)
    else:
        with pytest.raises(UserError, match="no longer use the GPU: RuntimeError: CUDA error"):
            list(replied)
