"""Figures and tables for a paper: their width and style."""

import shutil
import subprocess
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.reports import _write as write
from harness.reports import agreement, best, curves, differences, retrieval, scores
from harness.reports.plots.style import COLUMN, SIZE, Paper, drawing
from harness.reports.writing.tables import latex, wide
from tests.frames import PERPLEXITY, TWELVE, sweep

FRAME = sweep(lengths=(256, 2048))
MANY = sweep(scalings=TWELVE, lengths=(256, 2048))
LATEX = r"""\documentclass[10pt,twocolumn]{article}
\usepackage{graphicx}
\IfFileExists{booktabs.sty}{\usepackage{booktabs}}{%%
  \let\toprule\hline\let\midrule\hline\let\bottomrule\hline}
\begin{document}
%s
\end{document}
"""


def made(report: Any, asked: Paper, frame: pd.DataFrame = FRAME) -> Figure:
    with drawing(asked):
        draw = getattr(report, "draw", None)
        figure: Figure = draw(frame, report.make(frame)) if draw else report.make(frame)
        figure.draw_without_rendering()
    return figure


@pytest.mark.slow
@pytest.mark.parametrize(
    "report", [best, curves, retrieval, differences, agreement],
    ids=lambda report: report.__name__.rpartition(".")[2],
)  # fmt: skip
def test_a_figure_fits_a_column(report):
    """It is 3.3 inches wide and no taller than a page, and its panels have room to be read."""
    figure = made(report, Paper(width=COLUMN))
    width, height = figure.get_size_inches()
    assert width == COLUMN
    assert height < 9.5
    for axes in figure.axes:
        assert axes.get_title(loc="left") == "" or axes.get_position().width * width > 0.8
        assert axes.xaxis.label.get_size() in (SIZE, SIZE - 1, mpl.rcParams["font.size"])


def test_a_caption_is_beside_its_figure(tmp_path):
    """As text; none of it is in the image."""
    note = "Not comparable: models <a> and b_1 differ."
    write.write_reports(FRAME, tmp_path, ["curves"], note)
    plain = (tmp_path / "curves.caption.txt").read_text(encoding="utf-8")
    assert plain.startswith("Score against context length")
    assert plain.endswith(f"{note}\n")
    figure = made(curves, Paper())
    assert not figure.texts
    assert str(figure.get_label())[:40] in plain


@pytest.mark.slow
def test_a_style_file_sets_the_font_and_leaves_no_trace(tmp_path):
    """Text is in the style's font, a name with a $ is no formula, and settings are as before."""
    (tmp_path / "mine.mplstyle").write_text("font.family: serif\ntext.usetex: True\n")
    before = dict(mpl.rcParams)
    figure = made(curves, Paper(style=tmp_path / "mine.mplstyle"))
    assert figure.axes[0].xaxis.label.get_fontfamily() == ["serif"]
    assert not figure.axes[0].xaxis.label.get_usetex()
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
def test_a_figure_has_the_same_bytes_again(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(write, "FIGURES", (".png", ".svg", ".pdf"))
    few = FRAME[(FRAME["task"] == PERPLEXITY) & FRAME["scaling"].isin(["none", "yarn"])]
    one, two = (
        [
            file.read_bytes()
            for file in write.save_figure(made(curves, Paper(), few), folder, "curves")
        ]
        for folder in (tmp_path / "one", tmp_path / "two")
        if folder.mkdir() is None
    )
    assert one == two
    assert len(one) == 4  # with the caption
    assert not caplog.messages


@pytest.mark.slow
def test_the_flags_reach_the_figures(ropewalk, many, tmp_path, monkeypatch, rejected):
    """From the command line to the width of the SVG."""
    monkeypatch.setattr(write, "FIGURES", (".svg",))
    words = ["report", many, "--report", "retrieval", "--out", tmp_path, "--width", "column"]
    assert ropewalk(*words).status == 0
    assert f'width="{72 * COLUMN:.1f}pt"' in (tmp_path / "retrieval.svg").read_text()
    assert "is no style of Matplotlib" in rejected(*words, "--style", "absent.mplstyle")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_latex_tables_compile(tmp_path):
    odd = MANY.assign(scaling=MANY["scaling"].replace("mine", r"./_$%&#{}~^\|<>±×.py"))
    tables = [latex(table, title) for title, table in wide(scores.make(odd)).items()]
    (tmp_path / "paper.tex").write_text(LATEX % "\n".join(tables), encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"],
        cwd=tmp_path, capture_output=True, text=True, check=False, errors="replace",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
