"""Figures and tables for a paper: their width and style."""

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure

from ropewalk.harness.reports import _write as write
from ropewalk.harness.reports import curves
from ropewalk.harness.reports.plots.style import COLUMN, Paper, drawing
from ropewalk.harness.reports.writing.tables import latex
from tests.frames import PERPLEXITY, sweep

FRAME = sweep(lengths=(256, 2048))


def made(frame: pd.DataFrame, paper: Paper | None = None) -> Figure:
    with drawing(paper):
        figure = curves.make(frame)
        figure.draw_without_rendering()
    return figure


def test_a_caption_is_beside_its_figure(tmp_path):
    """As text; none of it is in the image."""
    note = "Not comparable: models <a> and b_1 differ."
    write.write_reports(FRAME, tmp_path, ["curves"], note)
    caption = (tmp_path / "curves.caption.txt").read_text(encoding="utf-8")
    assert caption.startswith("Score against context length")
    assert caption.endswith(f"{note}\n")


@pytest.mark.slow
def test_a_style_file_sets_the_font_and_leaves_no_trace(tmp_path):
    """Text is in the style's font, a name with a $ is no formula, and settings are as before."""
    (tmp_path / "mine.mplstyle").write_text("font.family: serif\ntext.usetex: True\n")
    before = dict(mpl.rcParams)
    figure = made(FRAME, Paper(style=tmp_path / "mine.mplstyle"))
    assert figure.axes[0].xaxis.label.get_fontfamily() == ["serif"]
    assert not figure.axes[0].xaxis.label.get_usetex()
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
def test_a_figure_has_the_same_bytes_again(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "FIGURES", (".png", ".svg", ".pdf"))
    few = FRAME[(FRAME["task"] == PERPLEXITY) & FRAME["scaling"].isin(["none", "yarn"])]
    first, second = (
        [file.read_bytes() for file in write.save_figure(made(few), tmp_path, name)]
        for name in ("first", "second")
    )
    assert first == second
    assert len(first) == 4  # with the caption


@pytest.mark.slow
def test_the_flags_reach_the_figures(ropewalk, many, tmp_path, monkeypatch, rejected):
    """From the command line to the width of the SVG."""
    monkeypatch.setattr(write, "FIGURES", (".svg",))
    words = ["report", many, "--report", "retrieval", "--out", tmp_path, "--width", "column"]
    assert ropewalk(*words).status == 0
    assert f'width="{72 * COLUMN:.1f}pt"' in (tmp_path / "retrieval.svg").read_text()
    assert "is no style of Matplotlib" in rejected(*words, "--style", "absent.mplstyle")


def test_a_table_of_latex_has_its_numbers_and_escapes_names():
    table = pd.DataFrame({"scaling": ["./a_b%.py"], "1024 (4×)": ["8.37 [7.2, 9.8]"]})
    text = latex(table, "Scores. A note.")
    assert r"./a\_b\%.py & 8.37 [7.2, 9.8]" in " ".join(text.split())
    assert r"\caption{Scores.}" in text
