"""Checkpoints of one model as treatments: paired with each other where they were asked the same."""

import pandas as pd
import pytest

from ropewalk.harness.commands.report import compared
from ropewalk.harness.errors import UserError
from ropewalk.harness.reports.cells import cells
from tests.frames import PERPLEXITY, sweep

pytestmark = pytest.mark.slow


def asked(frame: pd.DataFrame, *, other: str = "") -> pd.DataFrame:
    """Return a frame whose models were asked the same, but ``other`` that has other tokens."""
    names = frame["task"] + frame["length"].astype(str) + frame["unit"]
    return frame.assign(question=names.where(frame["model"] != other, "other " + names))


SMALL = {"models": ("base", "tuned"), "scalings": ("none", "ntk", "dynamic_ntk", "yarn")}
FRAME = asked(sweep(**SMALL, lengths=(256, 2048), gone=("", 0)))


def test_the_best_is_chosen_among_the_methods_of_all():
    """--together makes one table of the methods of all models, compared with the first of them."""
    table = cells(compared(FRAME, True))
    assert list(table["model"].unique()) == ["base and tuned"]
    known = FRAME[FRAME["task"] == PERPLEXITY].groupby(["length", "model", "scaling"])["score"]
    for row in table[table["best"] & (table["task"] == PERPLEXITY)].to_dict("records"):
        model, scaling = row["scaling"].split(" · ")
        assert known.first()[row["length"], model, scaling] == known.first()[row["length"]].min()
    here = table[(table["task"] == PERPLEXITY) & (table["length"] == 2048)].set_index("scaling")
    row = here.loc["tuned · none"]
    cell = FRAME[(FRAME["task"] == PERPLEXITY) & (FRAME["length"] == 2048)]
    pair = cell[cell["scaling"] == "none"].pivot(index="unit", columns="model", values="value")
    mean = (pair["tuned"] - pair["base"]).sum() / (64 * 24)
    assert row["difference"] == pytest.approx(mean, abs=mean**2)
    assert (row["baseline"], row["paired"], row["p_all"] >= row["p"]) == ("base · none", 24, True)


def test_models_of_one_method_each_are_compared_as_methods():
    alone = FRAME[FRAME["scaling"] == "none"]
    frame = compared(alone, None)
    assert set(frame["scaling"]) == {"base", "tuned"}
    one, other = cells(frame), cells(alone)
    assert set(one["baseline"].dropna()) == {"base"}
    numbers = ["task", "length", "score", "low", "effective_length"]
    one, other = (table[numbers].sort_values(numbers, ignore_index=True) for table in (one, other))
    pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize("other", ["tokens", "windows"])
def test_other_questions_or_windows_are_not_compared_as_methods(other):
    frame = asked(sweep(models=("base", "tuned")), other="tuned" if other == "tokens" else "")
    if other == "windows":
        frame = frame.assign(trained_length=frame["model"].map({"base": 256, "tuned": 1024}))
    alone = frame[frame["scaling"] == "none"]
    assert compared(alone, None) is alone
    with pytest.raises(UserError, match=r"--together.* (same questions|256 and 1024 tokens)"):
        compared(alone, True)
