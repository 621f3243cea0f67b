"""Figures for a paper: their width and style, the same bytes again, and no overlapping labels."""

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure

from ropewalk.harness.reports import _write as write
from ropewalk.harness.reports import curves
from ropewalk.harness.reports._style import COLUMN, Paper, drawing
from ropewalk.harness.reports._text import latex
from tests.frames import sweep

FRAME = sweep(lengths=(256, 2048))
pytestmark = pytest.mark.slow


def made(paper: Paper | None = None) -> Figure:
    with drawing(paper):
        figure = curves.make(FRAME)
        figure.draw_without_rendering()
    return figure


def test_a_style_file_sets_the_font_and_leaves_no_trace(tmp_path):
    """Text is in the style's font, a name with a $ is no formula, and settings are as before."""
    (tmp_path / "mine.mplstyle").write_text("font.family: serif\ntext.usetex: True\n")
    before = dict(mpl.rcParams)
    figure = made(Paper(style=tmp_path / "mine.mplstyle"))
    assert figure.axes[0].xaxis.label.get_fontfamily() == ["serif"]
    assert not figure.axes[0].xaxis.label.get_usetex()
    assert dict(mpl.rcParams) == before


def test_a_figure_has_the_same_bytes_again():
    first, second = (write.figure_files(made(), formats=write.FORMATS) for _ in range(2))
    assert first == second


def test_the_flags_reach_the_figures(ropewalk, many, tmp_path, rejected):
    """From the command line to the width of the SVG."""
    words = ["report", many, "--report", "answer", "--out", tmp_path, "--width", "column"]
    words += ["--format", "svg"]
    assert ropewalk(*words).status == 0
    assert f'width="{72 * COLUMN:.1f}pt"' in (tmp_path / "answer.svg").read_text()
    assert "is no style of Matplotlib" in rejected(*words, "--style", "absent.mplstyle")


def test_a_table_of_latex_has_its_numbers_and_escapes_names():
    table = pd.DataFrame({"scaling": ["./a_b%.py"], "1024 (4×)": ["8.37 [7.2, 9.8]"]})
    text = latex(table, "Scores.", "scores")
    assert r"./a\_b\%.py & 8.37 [7.2, 9.8]" in " ".join(text.split())
    assert r"\caption{Scores.}" in text
