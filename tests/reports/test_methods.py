"""What must hold for methods in all figures of a run: one name and look each, the best in front."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.reports import curves, differences, loss_by_position, retrieval
from harness.reports.differences import against
from harness.reports.plots.methods import FEW, FIXED, methods
from harness.reports.plots.panel import plain_log
from harness.reports.plots.style import REST, sheet
from tests.frames import PERPLEXITY, sweep

FRAME = sweep(lengths=(256, 512, 1024))
MANY = sweep(scalings=("none", *("m" * n for n in range(3, 27))), lengths=(256, 2048))


def whole(frame: pd.DataFrame) -> pd.DataFrame:
    facts = {
        "protocol": "prefix",
        "start": 1,
        "bucket": 32,
        "tokens": frame["length"][frame["status"] == "ok"],
    }
    told = frame[frame["task"].str.startswith("perplexity") & (frame["status"] == "ok")]
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
def test_a_method_looks_the_same_in_every_figure() -> None:
    """A figure of a part of the run's tasks has the names and colours of the whole run."""
    frame = pd.concat([FRAME, whole(sweep(scalings=("none", "ntk", "yarn"), lengths=(256, 1024)))
                       .assign(task="perplexity:protocol=prefix")])  # fmt: skip
    known = methods(frame)
    drawn = [colours(report.make(frame)) for report in (curves, loss_by_position)]
    for found in drawn:
        assert found
        for name, colour in found.items():
            assert known.look[name].color == colour


@pytest.mark.slow
def test_of_many_methods_the_best_stand_out() -> None:
    """More than can be told apart: the few best have colours, the others are grey, as one entry."""
    figure = curves.make(MANY)
    grey = [name for name, colour in colours(figure).items() if colour == REST.color]
    assert len(grey) == 24 - FEW
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[-1] == f"{len(grey)} others"
    assert len(names) == FEW + 2
    assert f"the {FEW} methods of the best mean rank" in note(figure)
    assert not any(look == REST for look in methods(FRAME).look.values())


def test_the_best_are_those_of_the_longest_length() -> None:
    """What stands out is what a reader looks for: the lowest perplexity, the most keys."""
    assert methods(FRAME).best[0] == "yarn"
    assert methods(FRAME).best[-1] == "none"


@pytest.mark.slow
def test_a_fixed_factor_is_dashed_and_said() -> None:
    """What is served is told from what follows the length, in every figure."""
    frame = FRAME.copy()
    frame.loc[frame["scaling"] == "mine", "frequencies"] = "one"
    assert methods(frame).fixed == {"mine"}
    assert FIXED in note(curves.make(frame))
    assert FIXED not in note(curves.make(FRAME))


@pytest.mark.slow
def test_names_without_end_stay_apart() -> None:
    """Two long names that are cut are two names, and a title is no page of text."""
    long = ["x" * 9000 + end + "y" * 9000 for end in "ab"]
    frame = sweep(scalings=("none", *long), models=("n" * 100_000,), lengths=(256, 512))
    known = methods(frame)
    assert len(set(known.names.values())) == 3
    assert max(map(len, known.names.values())) < 80
    figure = curves.make(frame)
    assert max(len(axes.get_title(loc="left")) for axes in figure.axes) < 1000
    assert figure.get_size_inches()[1] < 10


def test_tail_has_no_losses_of_a_whole_window() -> None:
    """Only the last tokens were scored: no figure, but a sentence that says so."""
    with pytest.raises(ValueError, match="tail scores only their last tokens"):
        loss_by_position.make(whole(FRAME).assign(protocol="tail"))


def test_one_length_is_no_curve() -> None:
    """An axis of one tick shows nothing that the table does not."""
    with pytest.raises(ValueError, match="one length is no curve"):
        curves.make(sweep(lengths=(512,)))


@pytest.mark.slow
@pytest.mark.parametrize("high", [1.05, 1.5, 3.0, 9.0, 95.0, 1e5, 1e12])
@pytest.mark.parametrize("low", [0.07, 1.1, 13.0, 480.0])
def test_a_logarithmic_axis_has_ticks(low: float, high: float) -> None:
    """Whatever its range, two to ten numbers stand at it."""
    _, [axes] = sheet(1, 1, panel_height=2)
    axes.plot([1, 2], [low, low * high])
    plain_log(axes, "y", low, low * high)
    bottom, top = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if bottom <= tick <= top]
    assert 2 <= len(ticks) <= 10


def test_numbers_at_an_axis_stay_apart() -> None:
    """From a million on they are powers of ten, as their zeros would run into each other."""
    _, [axes] = sheet(1, 1, panel_height=2)
    axes.plot([1, 1e10], [0, 1])
    plain_log(axes, "x", 1, 1e10)
    label = axes.xaxis.get_major_formatter()
    assert [label(x) for x in (0.5, 20_000, 1e6, 2e6, 1e10)] == [
        "0.5", "20,000", "10⁶", "2·10⁶", "10¹⁰",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_cell_that_lacks_samples_says_so_where_its_point_is() -> None:
    """The count stands beside the number, in the figure as in the table."""
    frame = FRAME.copy()
    here = (frame["scaling"] == "pi") & (frame["length"] == 1024) & frame["depth"].isna()
    frame.loc[frame[here].index[:4], "status"] = "not_finite"
    texts = {text.get_text() for axes in curves.make(frame).axes for text in axes.texts}
    assert "20 of 24" in texts


@pytest.mark.slow
def test_a_figure_of_many_maps_has_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many maps as can be read are drawn, and the rest is counted."""
    monkeypatch.setattr(retrieval, "MOST_MAPS", 2)
    figure = retrieval.draw(FRAME, FRAME)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title for title in titles if title] == ["yarn", "mine"]
    assert "The best 2 of 5 methods" in note(figure)


@pytest.mark.slow
def test_paired_differences_are_those_of_the_table() -> None:
    """Every mark stands at its difference, its bar is the interval, and full ones are sure."""
    figure = differences.draw(FRAME, differences.make(FRAME))
    table = against(FRAME, "none")
    here = table[(table["task"] == PERPLEXITY) & (table["length"] == 512)].set_index("scaling")
    marks = {str(line.get_label()): line for line in figure.axes[0].get_lines()}
    for name in ("pi", "yarn", "mine"):
        assert list(np.asarray(marks[name].get_xdata())) == [100 * here.loc[name, "difference"]]
        sure = here.loc[name, "verdict"] in ("better", "worse")
        assert (marks[name].get_markerfacecolor() != "white") == sure
    assert marks["yarn"].get_color() == methods(FRAME).look["yarn"].color


@pytest.mark.slow
def test_every_model_and_task_has_its_row_of_differences() -> None:
    """Lengths stand side by side; a length at which nothing differs has no panel."""
    figure = differences.draw(
        sweep(models=("one", "two"), scalings=("none", "pi"), lengths=(256, 512, 2048)),
        differences.make(
            sweep(models=("one", "two"), scalings=("none", "pi"), lengths=(256, 512, 2048))
        ),
    )
    titles = [axes.get_title(loc="left").split("\n") for axes in figure.axes]
    assert [lines[-1] for lines in titles] == ["512 (2×)", "2k (8×)"] * 4
    assert [lines[0].split(":")[0] for lines in titles[::2]] == ["one", "one", "two", "two"]


@pytest.mark.slow
def test_without_a_difference_there_is_no_figure() -> None:
    """Inside the window all are one; the message names the baseline."""
    same = sweep(lengths=(256,), scalings=("none", "pi", "yarn"))
    with pytest.raises(ValueError, match="no method differs from 'none'"):
        differences.draw(same, differences.make(same))
