"""What must hold for methods in figures: the best in front, and the numbers of the tables."""

import numpy as np
import pytest

from ropewalk.harness.reports import best, differences, regret
from ropewalk.harness.reports.differences import against
from ropewalk.harness.reports.plots.methods import methods
from tests.frames import PERPLEXITY, sweep

FRAME = sweep(lengths=(256, 512, 1024))


def test_the_best_are_those_of_the_longest_length():
    assert methods(FRAME).best[0] == "yarn"
    assert methods(FRAME).best[-1] == "none"


@pytest.mark.slow
def test_paired_differences_are_those_of_the_table():
    figure = differences.draw(FRAME, differences.make(FRAME))
    table = against(FRAME, "none")
    here = table[(table["task"] == PERPLEXITY) & (table["length"] == 512)].set_index("scaling")
    marks = {str(line.get_label()): line for line in figure.axes[0].get_lines()}
    for name in ("pi", "yarn", "mine"):
        assert list(np.asarray(marks[name].get_xdata())) == [100 * here.loc[name, "difference"]]
        sure = here.loc[name, "verdict"] in ("better", "worse")
        assert (marks[name].get_markerfacecolor() != "white") == sure


def test_the_answer_has_every_mark_at_its_difference_from_the_best():
    """And its bound; what is far off is text at the edge."""
    frame = sweep()
    table = regret.make(frame)
    here = (table["task"] == PERPLEXITY) & (table["length"] == 2048) & (table["scaling"] == "yarn")
    [row] = table[here].to_dict("records")
    axes = best.draw(frame, best.make(frame)).axes[0]
    drawn = [(str(line.get_label()), np.asarray(line.get_xdata(), float))
             for line in axes.get_lines()]  # fmt: skip
    marks = {name: float(x[0]) for name, x in drawn if name[0] != "_" and len(x) == 1}
    assert marks["yarn"] == pytest.approx(100 * row["difference"])
    assert pytest.approx(100 * row["regret"]) in [x[0] for name, x in drawn if name == "_bound"]
    assert "none" not in marks
    assert any("▸" in text.get_text() for text in axes.texts)
    assert axes.get_yticklabels()[-1].get_text() == "none"
