"""What must hold for methods in all figures of a run: one name and look each, the best in front."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.reports import best, curves, differences, loss_by_position, regret
from harness.reports.differences import against
from harness.reports.plots.methods import FIXED, methods
from tests.frames import PERPLEXITY, sweep

FRAME = sweep(lengths=(256, 512, 1024))
MANY = sweep(scalings=("none", *("m" * n for n in range(3, 27))), lengths=(256, 2048))


def whole(frame: pd.DataFrame) -> pd.DataFrame:
    told = frame[frame["task"].str.startswith("perplexity") & (frame["status"] == "ok")]
    facts = {"protocol": "prefix", "start": 1, "bucket": 32, "tokens": told["length"]}
    return told.assign(**facts, losses=[[3.0] * 8] * len(told))


def colours(figure: Figure) -> dict[str, object]:
    """Return the colour of every line that is drawn under a name."""
    return {
        str(line.get_label()): line.get_color()
        for axes in figure.axes
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    }


def note(figure: Figure) -> str:
    return str(figure.get_label())


@pytest.mark.slow
def test_a_method_looks_the_same_in_every_figure():
    frame = pd.concat([FRAME, whole(sweep(scalings=("none", "ntk", "yarn"), lengths=(256, 1024)))
                       .assign(task="perplexity:protocol=prefix")])  # fmt: skip
    known = methods(frame)
    drawn = [colours(report.make(frame)) for report in (curves, loss_by_position)]
    for found in drawn:
        assert found
        for name, colour in found.items():
            assert known.look[name].color == colour


def test_the_best_are_those_of_the_longest_length():
    assert methods(FRAME).best[0] == "yarn"
    assert methods(FRAME).best[-1] == "none"


@pytest.mark.slow
def test_a_fixed_factor_is_dashed_and_said():
    """What is served is told from what follows the length, in every figure."""
    frame = FRAME.copy()
    frame.loc[frame["scaling"] == "mine", "frequencies"] = "one"
    assert methods(frame).fixed == {"mine"}
    assert FIXED in note(curves.make(frame))
    assert FIXED not in note(curves.make(FRAME))


@pytest.mark.slow
def test_a_cell_that_lacks_samples_says_so_where_its_point_is():
    frame = FRAME.copy()
    here = (frame["scaling"] == "pi") & (frame["length"] == 1024) & frame["depth"].isna()
    frame.loc[frame[here].index[:4], "status"] = "not_finite"
    texts = {text.get_text() for axes in curves.make(frame).axes for text in axes.texts}
    assert "20 of 24" in texts


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
    assert marks["yarn"].get_color() == methods(FRAME).look["yarn"].color


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
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[-1] == "none"
    assert {"→ yarn", "truncation"} <= set(names)


def test_a_clear_winner_is_shown_with_the_next_best_and_the_shaded_margin() -> None:
    frame = sweep(scalings=("none", "pi", "yarn"))
    for axes in best.draw(frame, best.make(frame)).axes:
        marks = {str(line.get_label()): line for line in axes.get_lines()}
        [shown] = np.asarray(marks["pi"].get_xdata(), float)
        low, high = axes.get_xlim()
        assert low < -1 < 1 < shown < high
        assert marks["pi"].get_markerfacecolor() == "white"
