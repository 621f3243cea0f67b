"""Figures and tables for a paper: their width and style."""

import shutil
import subprocess

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.reports import _write as write
from harness.reports import curves, scores
from harness.reports.plots.style import COLUMN, Paper, drawing
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
