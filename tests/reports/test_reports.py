"""What must hold for every report in the folder, and for what each one shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import ropewalk.harness.reports
from ropewalk.harness.plugins import load, names
from ropewalk.harness.reports import curves, retrieval
from ropewalk.harness.stats.cells import cell_scores, shared
from tests.frames import PASSKEY, PERPLEXITY, TWELVE, Row, sweep

FOLDER = Path(ropewalk.harness.reports.__path__[0])
NAMES = names("report")
FRAME = sweep()


@pytest.fixture(scope="module", autouse=True)
def once() -> Iterator[None]:
    """Let the reports of one frame share what they compute, as those of a run do."""
    with shared():
        yield


@pytest.fixture(scope="module")
def drawn() -> Figure:
    return curves.make(FRAME)


def line(axes: Axes, label: str) -> Line2D:
    [found] = [line for line in axes.get_lines() if line.get_label() == label]
    return found


def named(figure: Figure) -> list[str]:
    """Return the methods of a figure's first panel."""
    labels = [str(line.get_label()) for line in figure.axes[0].get_lines()]
    return [label for label in labels if not label.startswith("_")]


# Every report.


FRAMES = {
    "one cell": sweep(scalings=("none",), lengths=(512,)),
    "perplexity": FRAME[(FRAME["task"] == PERPLEXITY) & (FRAME["length"] > 512)],
    "nothing measured": FRAME[FRAME["status"] == "out_of_memory"],
}
MANY = sweep(models=("toy-7m", "other"), scalings=TWELVE, lengths=(256, 2048))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "frame", [*FRAMES.values(), pytest.param(MANY, marks=pytest.mark.slow)], ids=[*FRAMES, "many"]
)
def test_make_returns_a_table_or_a_figure_or_says_why_not(name, frame):
    """Every report takes every sweep; one that does not apply raises ValueError with words."""
    before = frame.copy(deep=True)
    try:
        made = load("report", name).module.make(frame)
    except ValueError as error:
        made = str(error)
    assert isinstance(made, pd.DataFrame | Figure) or len(made) > 20
    pd.testing.assert_frame_equal(frame, before)


# Tables.

GOLDEN = """\
model,task,scaling,length,relative_length,metric,score,low,high,n,status,trained_length,frequencies
m,perplexity,none,128,0.5,perplexity,20.0,18.0,22.5,2,ok,256,aa
m,perplexity,none,512,2.0,perplexity,40.5,,,1,"1 of 2 ok, 1 not_finite",256,ab
m,perplexity,mine,512,2.0,perplexity,,,,,out_of_memory,256,ac
m,passkey,none,512,2.0,accuracy,0.5,0.095,0.905,2,ok,256,ab
"""


def small() -> pd.DataFrame:
    def row(task: str, scaling: str, length: int, score: float, **facts: object) -> Row:
        metric = "accuracy" if task == "passkey" else "perplexity"
        return {
            "run": "a", "model": "m", "trained_length": 256, "scaling": scaling, "task": task,
            "metric": metric, "length": length, "status": "ok", "score": score, **facts,
        }  # fmt: skip

    nan = math.nan
    none_512 = row("perplexity", "none", 512, 40.5, low=nan, high=nan, n=1, frequencies="ab")
    none_128 = row("perplexity", "none", 128, 20.0, low=18.0, high=22.5, n=2, frequencies="aa")
    gone = row("perplexity", "mine", 512, nan, low=nan, high=nan, n=nan, frequencies="ac")
    found = row("passkey", "none", 512, 0.5, low=0.095, high=0.905, n=2, frequencies="ab")
    return pd.DataFrame([
        none_512, {**none_512, "status": "not_finite"}, none_128, none_128,
        {**gone, "status": "out_of_memory"}, found, found,
    ])  # fmt: skip


def test_two_scores_for_one_cell_are_refused():
    other = small().assign(run="b", score=1.0)
    with pytest.raises(ValueError, match=r"length 512 has several scores \(40.5, 1\) in a, b"):
        cell_scores(pd.concat([small(), other]))


# Curves.


@pytest.mark.slow
def test_curves_draw_the_scores(drawn):
    table = cell_scores(FRAME)
    for axes, task in zip(drawn.axes, (PERPLEXITY, PASSKEY), strict=True):
        for name in ("none", "pi", "yarn"):
            rows = table[(table["task"] == task) & (table["scaling"] == name)]
            assert np.array_equal(line(axes, name).get_xdata(), rows["length"])
            assert np.array_equal(line(axes, name).get_ydata(), rows["score"])


# The map of keys.


def maps(figure: Figure) -> dict[str, Axes]:
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}


@pytest.mark.slow
def test_the_map_holds_the_share_of_keys_found():
    """Depth 0 is on top, lengths go right, and a cell says its share."""
    axes = maps(retrieval.draw(FRAME, FRAME))["yarn"]
    rows = FRAME[(FRAME["scaling"] == "yarn") & (FRAME["task"] == PASSKEY)]
    expected = rows.groupby(["depth", "length"])["value"].mean().unstack().to_numpy()
    assert np.array_equal(np.asarray(axes.images[0].get_array()), expected)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert [text.get_text() for text in axes.texts] == [f"{100 * x:.0f}" for x in expected.flat]
