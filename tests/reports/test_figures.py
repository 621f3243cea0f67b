"""Figures have the numbers of the tables, one look per method, and the same bytes again."""

from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from ropewalk.harness.reports import _write, answer, cells, curves, retrieval
from ropewalk.harness.reports._style import COLOURS, COLUMN, PLAIN, Paper, drawing, methods
from ropewalk.harness.reports._text import percent
from ropewalk.harness.stats.cells import cell_scores
from tests.frames import PASSKEY, PERPLEXITY, TWELVE, sweep

FRAME = sweep()


@pytest.fixture(scope="module", autouse=True)
def once() -> Iterator[None]:
    """Let the figures of one frame share what they compute, as those of a run do."""
    with cells.shared(FRAME):
        yield


def marks(axes: Axes) -> dict[str, np.ndarray]:
    """Return the places of every line by its label."""
    return {str(line.get_label()).removeprefix("→ "): line.get_xydata() for line in axes.lines}


@pytest.mark.slow
def test_curves_draw_the_scores_and_truncation():
    table = cell_scores(FRAME)
    figure = curves.make(FRAME)
    for axes, task in zip(figure.axes, (PERPLEXITY, PASSKEY), strict=True):
        for name in ("none", "pi", "yarn"):
            rows = table[(table["task"] == task) & (table["scaling"] == name)]
            assert np.array_equal(marks(axes)[name], rows[["length", "score"]])
    [line] = [part for part in figure.axes[0].collections if part.get_label() == "truncation"]
    own = table[(table["task"] == PERPLEXITY) & (table["length"] == 256)]["score"].iloc[0]
    assert line.get_segments()[0].ravel() == pytest.approx([256, own, 2048, own])


def test_a_caption_says_that_a_method_has_no_score_somewhere():
    """One that ran out of memory at the longest length has a shorter line, which may be unseen."""
    assert "Where a method has no score" in curves.make(FRAME).get_label()
    whole = sweep(scalings=("none", "pi"), lengths=(256, 512))
    assert "Where a method has no score" not in curves.make(whole).get_label()


@pytest.mark.slow
def test_the_map_holds_the_share_of_keys_found():
    """Depth 0 is on top, lengths go right, and a cell says its share."""
    figure = retrieval.draw(FRAME, FRAME)
    [axes] = [axes for axes in figure.axes if axes.get_title(loc="left") == "yarn"]
    rows = FRAME[(FRAME["scaling"] == "yarn") & (FRAME["task"] == PASSKEY)]
    expected = rows.groupby(["depth", "length"])["value"].mean().unstack().to_numpy()
    assert np.array_equal(np.asarray(axes.images[0].get_array()), expected)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert [text.get_text() for text in axes.texts] == [percent(x) for x in expected.flat]


def test_the_answer_has_every_mark_at_its_difference_from_the_best():
    """With its interval and its bound; what is far off is text at the edge."""
    table = cells.make(FRAME).set_index(["task", "length", "scaling"])
    read, keys = answer.make(FRAME).axes
    pi = table.loc[(PERPLEXITY, 2048, "pi")]
    assert marks(read)["pi"][0, 0] == pytest.approx(pi["above"])
    bars = [segment for made in read.collections for segment in made.get_segments()]
    ends = [bar[:, 0].tolist() for bar in bars]
    assert pytest.approx([pi["above_low"], pi["above_high"]]) in ends
    assert pytest.approx([pi["above"], pi["regret"]]) in ends
    assert "none" not in marks(read)
    assert any("▸" in text.get_text() for text in read.texts)
    mine = table.loc[(PASSKEY, 2048, "mine")]
    assert marks(keys)["mine"][0, 0] == pytest.approx(-mine["above"])  # fewer keys are worse
    names = [label.get_text() for label in read.get_yticklabels()]
    assert names == ["→ yarn", "truncation", "ntk = dynamic_ntk", "pi", "none"]
    level = table.loc[(PERPLEXITY, 2048, "yarn")]
    assert marks(read)["truncation"][0, 0] == pytest.approx(1 / (1 + level["change"]) - 1)


def test_a_method_has_its_colour_in_every_run():
    """Whatever else a run has, and with options where the plain method is not there."""
    few, many = methods(FRAME).look, methods(sweep(scalings=TWELVE)).look
    assert few["pi"] == many["pi"]
    assert few["none"] == many["none"] == PLAIN
    assert few["yarn"] == many["yarn:factor=8,beta_fast=16,beta_slow=2"]
    looks = [(look.color, look.marker) for look in many.values()]
    assert len(set(looks)) == len(looks) == 11  # ntk and dynamic_ntk are one


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("deuteranopia", (0.29275, 0.70725, -0.02234)),
        ("protanopia", (0.11238, 0.88762, 0.00401)),
    ],
)
def test_the_colours_differ_for_the_colour_blind(kind, seen):
    """In linear RGB as a dichromat sees it (Viénot, Brettel and Mollon 1999)."""
    red, green, blue = (np.array([to_rgb(color) for color in COLOURS]) ** 2.2).T
    same = seen[0] * red + seen[1] * green
    known = np.stack([same, seen[2] * (red - green) + blue], axis=1)
    apart = [np.abs(one - other).max() for i, one in enumerate(known) for other in known[:i]]
    assert min(apart) > 0.05, kind


@pytest.mark.slow
def test_a_style_file_sets_the_font_and_the_same_data_has_the_same_bytes(tmp_path):
    """A name with a $ is no formula in any style, and settings are as before."""
    (tmp_path / "mine.mplstyle").write_text("font.family: serif\ntext.usetex: True\n")
    before = dict(mpl.rcParams)
    with drawing(Paper(style=tmp_path / "mine.mplstyle")):
        label = curves.make(FRAME).axes[0].xaxis.label
    assert (label.get_fontfamily(), label.get_usetex()) == (["serif"], False)
    assert dict(mpl.rcParams) == before
    files = [_write.figure_files(curves.make(FRAME), formats=_write.FORMATS) for _ in range(2)]
    assert files[0] == files[1]


@pytest.mark.slow
def test_the_flags_reach_the_figures(ropewalk, many, tmp_path, rejected):
    """From the command line to the width of the SVG."""
    words = ["report", many, "--report", "answer", "--out", tmp_path, "--width", "column"]
    words += ["--format", "svg"]
    assert ropewalk(*words).status == 0
    assert f'width="{72 * COLUMN:.1f}pt"' in (tmp_path / "answer.svg").read_text()
    assert "is no style of Matplotlib" in rejected(*words, "--style", "absent.mplstyle")
