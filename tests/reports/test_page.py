"""The page of a run: one file without a script, whose names are text and whose numbers show."""

import re
from base64 import b64decode

import pandas as pd
import pytest

from ropewalk.harness.reports._page import page
from ropewalk.harness.reports._write import Written, write_reports
from ropewalk.harness.reports.cells import differences, scores
from ropewalk.harness.reports.verdict import summary
from ropewalk.harness.runs.frame import make_frame
from ropewalk.harness.runs.provenance import command
from ropewalk.harness.runs.store import SAMPLES, read_run
from tests import ROOT, small_runs
from tests.frames import sweep

HOSTILE = '</script><img src="http://away.test/x" onerror="document.title=1">'
RUN = ROOT / "results" / "reference"
FRAME = make_frame([RUN])
pytestmark = pytest.mark.slow  # four figures each


@pytest.fixture(scope="module")
def written() -> Written:
    """Return the figures of the reference run."""
    return write_reports(FRAME, None, small_runs.FIGURES)


@pytest.fixture(scope="module")
def html(written: Written) -> str:
    return page([read_run(RUN)], written)


def test_a_page_has_the_answer_and_how_to_serve_it(html, written):
    for line in summary(written.cells):
        assert f"{line[1:]}</p>" in html
    command = "ropewalk export reference --scaling yarn --length 2048 --to transformers"
    assert f"<pre>{command}</pre>" in html


def test_the_command_is_of_the_method_that_the_answer_names():
    """Not of one of many others that are the same measurement."""
    run, copies = read_run(RUN), [f"copy-{n}" for n in range(20)]
    run["methods"] |= {name: {**run["methods"]["yarn"], "given": name} for name in copies}
    rows = FRAME[FRAME["scaling"] == "yarn"]
    frame = pd.concat([FRAME, *(rows.assign(scaling=name) for name in copies)])
    written = write_reports(frame, None, ["verdict"])
    assert summary(written.cells)[0].startswith("8x: use yarn ")
    assert "<pre>ropewalk export reference --scaling yarn --length" in page([run], written)


def test_a_page_has_every_score_and_difference_with_its_interval(html, written):
    for shown in (scores(written.cells), differences(written.cells)):
        for text in (text for part in shown.values() for text in part.iloc[:, 1:].to_numpy().flat):
            assert f"<td>{text}</td>" in html


def test_a_page_is_small_runs_no_script_and_names_no_other_place(html):
    """It is under 700 kB, and no element of it has an address but its own figures."""
    assert len(html.encode()) < 7e5
    assert "<script" not in html
    figures = re.findall(r'<img src="data:image/svg\+xml;base64,([\w+/=]+)"', html)
    assert len(figures) == html.count("src=") == 4
    assert "href=" not in html


def test_names_are_text_and_never_markup():
    frame = sweep(lengths=(256, 2048))
    frame = frame.assign(scaling=frame["scaling"].replace({"pi": HOSTILE}))
    text = page([], write_reports(frame, None, ["cells", "curves:kept=0.5"]), HOSTILE)
    assert "<h2>Score against length</h2>" in text
    assert "<h2>One row per model, task, length and method, with its score," in text
    assert HOSTILE not in text
    assert "&lt;/script&gt;&lt;img" in text
    for figure in re.findall(r"base64,([\w+/=]+)", text):
        assert b"<img" not in b64decode(figure)


def test_a_run_has_its_page_beside_its_tables(ropewalk, small, tmp_path, rejected, monkeypatch):
    done = ropewalk("report", small, "--out", tmp_path / "files")
    assert done.status == 0
    text = (tmp_path / "files" / "index.html").read_text(encoding="utf-8")
    assert "--scaling pi" in text
    assert str(tmp_path / "files" / "index.html") in done.out
    monkeypatch.chdir(tmp_path)
    sent = tmp_path / "page.html"
    done = ropewalk("report", small, small, "--page", sent.name, "--report", "cells")
    assert (done.status, [*tmp_path.glob("*.html")]) == (0, [sent])
    assert ropewalk("report", small, "--page", sent).status == 0  # its own page is made again
    sent.write_text("<title>Mine</title>")
    assert "is there already" in rejected("report", small, "--page", sent)
    assert sent.read_text() == "<title>Mine</title>"
    before = (small / SAMPLES).read_bytes()
    assert "ends in .html" in rejected("report", small, "--page", small / SAMPLES)
    assert (small / SAMPLES).read_bytes() == before


@pytest.mark.parametrize(
    ("asked", "more", "line"),
    [
        ({"docs": "my books", "offline": True}, {}, "ropewalk run --docs 'my books' --offline"),
        ({"seed": 1, "published": "pi-pg19"}, {}, "ropewalk run --seed 1"),
        ({"docs": {"passkey": "embedded"}}, {}, ""),
        ({"scaling": ["mine"]}, {"methods": {"mine": {"file": "function"}}}, ""),
        ({"model": "m"}, {"model": {"loaded": True}}, ""),
    ],
)
def test_a_command_is_one_that_runs(asked, more, line):
    """A sweep that only a file or Python states has no command, and none has a file's setting."""
    assert command({"asked": asked, "model": {}, "methods": {}} | more) == line
