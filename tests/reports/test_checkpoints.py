"""Checkpoints of one model as treatments: paired with each other where they were asked the same."""

from collections.abc import Iterator

import pandas as pd
import pytest

from ropewalk.harness.api.report import compared
from ropewalk.harness.errors import UserError
from ropewalk.harness.reports import best, differences, effective_length
from ropewalk.harness.stats.cells import shared
from ropewalk.harness.stats.checkpoints import alike, together
from tests.frames import PERPLEXITY, sweep

pytestmark = pytest.mark.slow


def asked(frame: pd.DataFrame, *, other: str = "") -> pd.DataFrame:
    """Return a frame whose models were asked the same, but ``other`` that has other tokens."""
    names = frame["task"] + frame["length"].astype(str) + frame["unit"]
    names = names.where(frame["status"] == "ok")  # what was lost has the question, not the unit
    names = names.fillna(frame["task"] + frame["length"].astype(str))
    return frame.assign(question=names.where(frame["model"] != other, "other " + names))


SMALL = {"models": ("base", "tuned"), "scalings": ("none", "ntk", "dynamic_ntk", "yarn")}
FRAME = asked(sweep(**SMALL, lengths=(256, 2048), gone=("", 0)))


@pytest.fixture(scope="module", autouse=True)
def compared_once() -> Iterator[None]:
    """Let the tests share what they compute of one frame, as the reports of a run do."""
    with shared():
        yield


def test_a_checkpoint_is_compared_method_by_method():
    table = differences.make(FRAME)
    rows = table[table["baseline"] == "base"]
    assert set(rows["model"]) == {"tuned"}
    assert len(rows) == 2 * 2 * 4
    row = rows[(rows["task"] == PERPLEXITY) & (rows["length"] == 2048)].iloc[1]
    cell = FRAME[(FRAME["task"] == PERPLEXITY) & (FRAME["length"] == 2048)]
    pair = cell[cell["scaling"] == row["scaling"]].pivot(
        index="unit", columns="model", values="value"
    )
    mean = (pair["tuned"] - pair["base"]).sum() / (64 * 24)
    assert row["difference"] == pytest.approx(mean, abs=mean**2)
    assert (row["n"], row["p_all"] >= row["p"]) == (24, True)


def test_the_best_is_chosen_among_the_methods_of_all():
    table = best.make(FRAME)
    assert list(table["model"].unique()) == ["base", "tuned", "base and tuned"]
    both = table[(table["model"] == "base and tuned") & (table["task"] == PERPLEXITY)]
    scores = FRAME[FRAME["task"] == PERPLEXITY].groupby(["length", "model", "scaling"])["score"]
    for row in both.to_dict("records"):
        model, scaling = row["best"].split(" · ")
        assert scores.first()[row["length"], model, scaling] == scores.first()[row["length"]].min()


@pytest.mark.parametrize("first", ["base", "tuned"])
def test_models_of_other_windows_have_lengths_in_tokens_alone(first):
    """2048 tokens are 8 windows of one model and 2 of the other, in whichever order they stand."""
    frame = FRAME.assign(trained_length=FRAME["model"].map({"base": 256, "tuned": 1024}))
    table = best.make(frame.sort_values("model", ascending=first == "base", kind="stable"))
    both = table[table["model"].str.contains(" and ")]
    assert both[["trained_length", "relative_length"]].isna().all(axis=None)
    assert set(table["trained_length"].dropna()) == {256, 1024}
    shown = [rows for title, rows in best.display(table).items() if " and " in title]
    assert {tuple(rows["length"]) for rows in shown} == {("256", "2048")}


def test_models_of_other_tokens_are_not_paired():
    frame = asked(sweep(**SMALL), other="tuned")
    assert alike(frame) == []
    assert set(best.make(frame)["model"]) == {"base", "tuned"}
    assert set(differences.make(frame)["baseline"]) == {"none"}
    assert together(frame.drop(columns="question")).empty


def test_models_of_one_method_each_are_compared_as_methods():
    alone = FRAME[FRAME["scaling"] == "none"]
    frame = compared(alone, None)
    assert set(frame["scaling"]) == {"base", "tuned"}
    one, other = differences.make(frame), differences.make(alone)
    parts = ["task", "length", "difference", "low", "p_all", "verdict"]
    assert set(one["baseline"]) == set(other["baseline"]) == {"base"}
    pd.testing.assert_frame_equal(one[parts], other[parts])
    reached = [
        table.set_index(["task", name])["effective_length"].to_dict()
        for table, name in (
            (effective_length.make(frame), "scaling"), (effective_length.make(alone), "model"),
        )
    ]  # fmt: skip
    assert reached[0] == reached[1]


@pytest.mark.parametrize("other", ["tokens", "windows"])
def test_other_questions_or_windows_are_not_compared_as_methods(other):
    frame = asked(sweep(models=("base", "tuned")), other="tuned" if other == "tokens" else "")
    if other == "windows":
        frame = frame.assign(trained_length=frame["model"].map({"base": 256, "tuned": 1024}))
    alone = frame[frame["scaling"] == "none"]
    assert compared(alone, None) is alone
    with pytest.raises(UserError, match=r"--together.* (same questions|256 and 1024 tokens)"):
        compared(alone, True)
