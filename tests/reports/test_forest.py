"""The answer figure and the names at the ends of lines: what is drawn is what the table says."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.reports import best, regret
from harness.reports.plots.endlabels import HAIR, End, bundles, spread
from harness.reports.writing.titles import titles
from tests.frames import PASSKEY, PERPLEXITY, sweep

FRAME = sweep()


@pytest.fixture(scope="module")
def figure() -> Figure:
    return best.draw(FRAME, best.make(FRAME))


def marks(figure: Figure, panel: int) -> dict[str, float]:
    """Return where the methods of a panel have their marks."""
    lines = figure.axes[panel].get_lines()
    drawn = {str(line.get_label()): np.asarray(line.get_xdata(), float) for line in lines}
    return {name: float(x[0]) for name, x in drawn.items() if name[0] != "_" and len(x) == 1}


def test_every_mark_is_at_its_difference_from_the_best(figure: Figure) -> None:
    """As in the table of regret, in percent, with the bound at the end of a thin line."""
    table = regret.make(FRAME)
    here = (table["task"] == PERPLEXITY) & (table["length"] == 2048) & (table["scaling"] == "yarn")
    [row] = table[here].to_dict("records")
    assert marks(figure, 0)["yarn"] == pytest.approx(100 * row["difference"])
    lines = [line for line in figure.axes[0].get_lines() if line.get_label() == "_bound"]
    bounds = [np.asarray(line.get_xdata(), float)[0] for line in lines]
    assert pytest.approx(100 * row["regret"]) in bounds


def test_what_is_far_off_is_text_at_the_edge(figure: Figure) -> None:
    """The plain model is many times worse: its row has a number, and no mark."""
    assert "none" not in marks(figure, 0)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert any("▸" in text for text in texts)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[-1] == "none"
    assert "→ yarn" in names
    assert "truncation" in names


def test_the_title_says_what_to_use_and_how_many_may_be_the_best(figure: Figure) -> None:
    row = best.make(FRAME).query("task == @PASSKEY and length == 2048").iloc[0]
    title = " ".join(figure.axes[1].get_title(loc="left").split())
    assert title.startswith("Passkey accuracy ")
    assert f"Winner: {row['use']}" in title or f"Use {row['use']}: at most" in title


def test_titles_are_words_and_no_two_are_alike() -> None:
    more = FRAME[FRAME["task"] == PASSKEY].assign(task="passkey:trials=1")
    named = titles(pd.concat([FRAME, more]))
    assert named[PERPLEXITY] == "Perplexity on the last 64 tokens"
    assert named[PASSKEY] == "Passkey accuracy (trials=4)"
    assert len(set(named.values())) == 3


def test_labels_do_not_touch_and_keep_their_order() -> None:
    """Inside the panel, wherever the lines end."""
    for places in ([0.0, 0.01, 0.02], [0.98, 0.99, 1.0], [0.1, 0.5, 0.52, 0.9]):
        halves = [0.05] * len(places)
        centers = spread(places, halves)
        for low, high in itertools.pairwise(centers):
            assert high - low >= 0.1 - 1e-9
        assert centers[0] >= 0
        assert centers[-1] <= 1


def test_lines_within_a_hair_are_one_bundle() -> None:
    ends = [End(name, 1, place, "black", place, place)
            for name, place in (("a", 0.5), ("b", 0.5 + HAIR / 2), ("c", 0.9))]  # fmt: skip
    assert [[end.name for end in group] for group in bundles(ends)] == [["a", "b"], ["c"]]
