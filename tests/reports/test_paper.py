"""Figures and tables for a paper: width, style, which methods, their names, order and colours."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from harness.errors import UserError
from harness.reports import _write as write
from harness.reports import agreement, best, curves, differences, retrieval, scores
from harness.reports._figures import COLUMN, PAGE, Paper, checked, requested_figures
from harness.reports.plots import answer
from harness.reports.plots.style import SIZE, drawing
from harness.reports.writing.sentences import latex_sentence
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


def names(figure: Figure) -> list[str]:
    """Return the methods of the first panel, in their order."""
    labels = [str(line.get_label()) for line in figure.axes[0].get_lines()]
    return [label for label in labels if not label.startswith("_")]


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
    """As text, and as Markdown and LaTeX that show the figure; none of it is in the image."""
    note = "Not comparable: models <a> and b_1 differ."
    write.write_reports(FRAME, tmp_path, ["curves"], note)
    plain, md, tex = (
        (tmp_path / f"curves.caption.{kind}").read_text(encoding="utf-8")
        for kind in ("txt", "md", "tex")
    )
    assert plain.startswith("Score against context length")
    assert plain.endswith(f"{note}\n")
    assert md.startswith(
        "![Score against context length, one panel per model and task](curves.png)"
    )
    assert r"\includegraphics[width=\linewidth]{curves.pdf}" in tex
    assert r"b\_1 differ." in tex
    figure = made(curves, Paper())
    assert not figure.texts
    assert str(figure.get_label())[:40] in plain


@pytest.mark.slow
def test_only_some_methods_are_drawn_in_their_order_and_under_other_names():
    asked = Paper(only=("yarn", "dynamic_ntk", "none"), rename={"yarn": "YaRN", "ntk": "NTK"},
                  colours={"yarn": "#aa3377"})  # fmt: skip
    figure = made(curves, asked)
    assert names(figure) == ["YaRN", "NTK = dynamic_ntk", "none"]
    [line] = [line for line in figure.axes[0].get_lines() if line.get_label() == "YaRN"]
    assert to_hex(line.get_color()) == "#aa3377"


@pytest.mark.slow
def test_a_style_file_sets_the_font_and_leaves_no_trace(tmp_path):
    """Text is in the style's font, a name with a $ is no formula, and settings are as before."""
    (tmp_path / "mine.mplstyle").write_text("font.family: serif\ntext.usetex: True\n")
    before = dict(mpl.rcParams)
    figure = made(curves, Paper(style=tmp_path / "mine.mplstyle"))
    assert figure.axes[0].xaxis.label.get_fontfamily() == ["serif"]
    assert not figure.axes[0].xaxis.label.get_usetex()
    assert dict(mpl.rcParams) == before


def test_a_file_beside_the_run_says_the_same_and_flags_win(tmp_path):
    """Its names and the flags' are joined; a style is one of Matplotlib's."""
    (tmp_path / "figures.toml").write_text(
        'width = "column"\norder = ["yarn"]\nstyle = "ggplot"\n'
        '[rename]\nyarn = "YaRN"\n[colours]\nyarn = "#aa3377"\n'
    )
    frame = sweep(scalings=("none", "yarn"), lengths=(256,))
    found = requested_figures(
        tmp_path, {"width": "page", "rename": ["yarn:factor=4=YaRN 4×"], "only": None}
    )
    assert found.width == PAGE
    assert found.rename == {"yarn": "YaRN", "yarn:factor=4": "YaRN 4×"}
    assert requested_figures(tmp_path, {}).width == COLUMN
    assert checked(requested_figures(tmp_path, {}), frame).style["axes.grid"]
    assert requested_figures(tmp_path / "none", {}) == Paper()


def test_a_wrong_width_is_blamed_on_who_gave_it(tmp_path):
    for width in ("nan", "inf", "1", "21", "1e999", "-3", "broad"):
        with pytest.raises(UserError, match=rf"^--width {width}: write .* from 2 to 20\.$"):
            requested_figures(tmp_path, {"width": width})
    (tmp_path / "figures.toml").write_text('width = "broad"\n')
    with pytest.raises(UserError, match="figures.toml: width: "):
        requested_figures(tmp_path, {"width": None})
    (tmp_path / "figures.toml").write_text('rename = "YaRN"\n')
    with pytest.raises(UserError, match="figures.toml: rename: .* known: width"):
        requested_figures(tmp_path, {"rename": ["yarn=YaRN"]})


def _link(file: Path) -> None:
    file.symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    "content",
    [
        os.mkfifo, _link, Path.mkdir, 'style = "/dev/zero"', 'style = "/etc/passwd"',
        'style = "mine.mplstyle"', "style = 5", "only = " + "[" * 3000, "width = 1e999",
        '[rename]\nyarn = "\\u001b[2J"', f'[rename]\nyarn = "{"x" * 61}"', "x" * 2**21, "only = 5",
        '[colours]\nyarn = "url(x)"', "\0", 'only = ["\\u001b[2J"]', "[[only]]", "new = 1",
    ],
    ids=lambda content: getattr(content, "__name__", str(content))[:24],
)  # fmt: skip
def test_a_file_of_a_foreign_run_has_values_from_fixed_lists(content, run, tmp_path, ropewalk):
    """It names no path, and what is not allowed is one sentence without escape characters."""
    file = run / "figures.toml"
    if callable(content):
        content(file)
    else:
        file.write_text(content)
    done = ropewalk("report", run, "--report", "scores", "--out", tmp_path / "out")
    assert done.status == 2
    assert done.err.startswith("ropewalk: ")
    assert not any(word in done.out + done.err for word in ("\x1b", "root:"))


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"only": ("yran",)}, "did you mean 'yarn'"),
        ({"rename": ("yarn",)}, "METHOD=NAME"),
        ({"style": "absent.mplstyle"}, "style file"),
        ({"colours": {"yarn": "reddish"}}, "is no colour"),
    ],
)
def test_a_wrong_wish_is_one_sentence(tmp_path, flags, word):
    with pytest.raises(UserError, match=word):
        checked(requested_figures(tmp_path, flags), FRAME)


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
    assert len(one) == 6  # with captions
    assert not caplog.messages


@pytest.mark.slow
def test_the_flags_reach_the_figures(ropewalk, many, tmp_path, monkeypatch, rejected):
    """From the command line to the SVG: its width, and one method less."""
    monkeypatch.setattr(write, "FIGURES", (".svg",))
    words = ["--report", "differences", "retrieval", "--out", tmp_path, "--width", "column"]
    done = ropewalk(
        "report", many, *words, "--only", "yarn:factor=4", "--rename", "yarn:factor=4=YaRN"
    )
    assert done.status == 0
    text = (tmp_path / "retrieval.svg").read_text()
    assert f'width="{72 * COLUMN:.1f}pt"' in text
    assert "no method of these runs" in rejected("report", many, *words, "--only", "abf")


def test_captions_have_no_sign_that_latex_lacks():
    """LaTeX itself knows Latin-1, quotes, dashes, daggers and dots; all else is an error there."""
    known = {*map(chr, range(256)), *"“”‘’–—†…"}
    signs = [*curves.SIGNS.values()]
    texts = [agreement.NOTE, answer.CAPTION, differences.FIGURE, differences.FAILED, *signs]
    assert not {sign for text in texts for sign in latex_sentence(text)} - known


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
