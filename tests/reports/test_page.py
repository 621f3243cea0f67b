"""The page that is sent: one file, whose answer, tables and silence a real browser tries."""

import gzip
import json
import re
import shutil
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.reports import best, scores
from ropewalk.harness.reports._write import write_reports
from ropewalk.harness.reports.page import page
from ropewalk.harness.reports.page.serving import INSIDE, serving
from ropewalk.harness.reports.writing.tables import RenderedTable, csv
from ropewalk.harness.runs.frame import make_frame
from ropewalk.harness.runs.provenance import command, documents, facts
from ropewalk.harness.runs.store import read_run
from ropewalk.scaling import native, yarn
from ropewalk.scaling.types import Frequencies, Rope
from tests import ROOT
from tests.frames import PERPLEXITY, sweep

HOSTILE = '</script><img src="http://away.test/x" onerror="document.title=1">'
pytestmark = pytest.mark.slow  # a browser, and a page of every table
INSTALLED = ("chromium", "chromium-browser", "google-chrome")  # by Debian, Alpine, Google
FACTS = [("model", [HOSTILE]), ("the command", ["ropewalk run --model reference"])]


def with_losses(frame: pd.DataFrame) -> pd.DataFrame:
    """Let perplexity score whole windows, in 16 runs of positions."""
    whole = frame["task"] == PERPLEXITY
    size = (frame["length"] // 16).where(whole)
    losses = [[3.0 + place / 9 for place in range(16)] if one else None for one in whole]
    return frame.assign(
        protocol=frame["protocol"].where(~whole, "prefix"), start=size * 0, bucket=size,
        tokens=frame["length"], losses=losses,
    )  # fmt: skip


def html(frame: pd.DataFrame, *makers: Any, note: str = "") -> str:
    tables = {}
    for maker in makers:
        table = maker.make(frame)
        tables[maker.__name__.rpartition(".")[2]] = RenderedTable(
            "A table.", getattr(maker, "summary", maker.notes)(table), table
        )
    return page(frame, tables, FACTS, note)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    frame = with_losses(sweep(lengths=(256, 1024, 2048)))
    hostile = frame["scaling"].replace({"pi": HOSTILE, "mine": "=cmd|' /C calc'!A0"})
    return frame.assign(scaling=hostile, reason=frame["status"].map({"out_of_memory": HOSTILE}))


@pytest.fixture(scope="module")
def made(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(html(frame, best, scores, note=HOSTILE), encoding="utf-8")
    return file


# The file.


def test_a_page_is_small_and_names_no_other_place(made):
    """It is under 500 kB, and no element of it has an address but its own figures."""
    text = made.read_text(encoding="utf-8")
    assert len(text.encode()) < 5e5
    elements = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"<[^>]+\b(?:src|srcset|href)=(?!\"data:image/svg)", elements)
    assert "default-src 'none'" in unescape(elements)


def test_a_page_has_the_numbers_of_the_tables(made, frame):
    packed = made.read_text(encoding="utf-8").partition('id="content">')[2].partition("<")[0]
    tables = json.loads(gzip.decompress(b64decode(packed)))["tables"]
    for report in (best, scores):
        assert tables[report.__name__.rpartition(".")[2]]["csv"] == csv(report.make(frame))


def test_names_are_text_and_never_markup(made):
    text = made.read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert text.count("</script>") == 2  # the data, and the page's own
    assert "&lt;/script&gt;&lt;img" in text
    for figure in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", text):
        assert b"<img" not in b64decode(figure)


@pytest.mark.usefixtures("real_page")
def test_a_run_has_its_page_beside_its_tables(ropewalk, small, tmp_path, rejected):
    done = ropewalk("report", small, "--out", tmp_path / "files")
    assert done.status == 0
    text = (tmp_path / "files" / "index.html").read_text(encoding="utf-8")
    assert "--scaling pi" in text
    assert str(tmp_path / "files" / "index.html") in done.out
    one = tmp_path / "sent" / "page.html"
    done = ropewalk("report", small, small, "--page", one, "--report", "scores")
    assert (done.status, [path.name for path in one.parent.iterdir()]) == (0, ["page.html"])
    assert ".html" in rejected("report", small, "--page", tmp_path / "page.pdf")


def test_a_page_says_how_a_run_was_measured():
    record = read_run(ROOT / "results" / "reference")
    measured = dict(facts([record, record]))
    method = "yarn:factor=4: factor=4.0, beta_fast=32.0"
    assert any(line.startswith(method) for line in measured["method"])
    [line] = measured["the command"]
    assert line.startswith("ropewalk run --model reference --scaling none pi ")
    assert len(documents([record, record])) == 23


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


def test_a_config_holds_the_frequencies_that_were_measured():
    run = read_run(ROOT / "results" / "reference")
    window, dim = (run["model"][key] for key in ("trained_length", "rotary_dim"))
    forms = set()
    for cell in run["cells"]:
        stored = run["frequencies"][cell["frequencies"]]
        found = serving(run, cell["scaling"], cell["length"])
        assert found is not None
        if "bands" in stored:
            assert (found.config, found.command.split()[-1]) == ("", "hf-code")
            continue
        parameters = json.loads(found.config)["rope_parameters"]
        forms.add(parameters["rope_type"])
        rope = Rope(dim, float(parameters["rope_theta"]), window, parameters)
        computed = native.frequencies(rope, window + 1)
        torch.testing.assert_close(
            computed.inv_freq, torch.tensor(stored["inv_freq"]), rtol=2e-6, atol=0
        )
        assert computed.attention_factor == pytest.approx(stored["attention_factor"])
    assert forms == {"default", "linear", "yarn", "longrope"}


def recorded(frequencies: Frequencies, **model: Any) -> dict[str, Any]:
    """Return what a record of the method "mine" has of a model and its frequencies."""
    return {
        "asked": {"model": "m"},
        "model": {"base": 10000.0, "trained_length": 256, **model},
        "methods": {"mine": {"given": "mine", "options": {}}},
        "cells": [{"scaling": "mine", "length": 1024, "frequencies": "one"}],
        "frequencies": {"one": frequencies.to_record()},
    }


@pytest.mark.filterwarnings("ignore")
def test_the_types_whose_top_keys_have_no_effect_are_known():
    """All that transformers has: rope parameters of an inner config, or of each layer type."""
    found = set()
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        with suppress(Exception):  # it has no default config, or none that is supported
            config = CONFIG_MAPPING[kind]()
            rope_of(config)
            text = config.get_text_config()
            if text is not config or "rope_theta" not in text.rope_parameters:
                found.add(kind)
    assert found <= set(INSIDE)


def test_yarn_with_its_own_critical_channel_is_written_by_its_frequencies():
    """No config has a key for the channel: under the name yarn an engine computes others."""
    options = {"factor": 4.0, "critical": 6}
    usual = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "ramp": "code"}
    measured = yarn.frequencies(Rope(32, 10000.0, 256), 1024, **options)
    run = recorded(measured)
    run["methods"]["mine"] = {"given": "yarn:factor=4,critical=6", "options": usual | options}
    equal_frequencies(run, measured)


def test_a_config_of_faster_frequencies_is_not_that_of_the_plain_ones():
    faster = Frequencies(2 * Rope(32, 10000.0, 256).inv_freq())
    equal_frequencies(recorded(faster), faster)


def equal_frequencies(run: dict[str, Any], measured: Frequencies) -> None:
    """Fail unless the config of "mine" gives the measured frequencies."""
    found = serving(run, "mine", 1024)
    assert found is not None
    parameters = json.loads(found.config)["rope_parameters"]
    computed = native.frequencies(Rope(32, 10000.0, 256, parameters), 1024)
    torch.testing.assert_close(computed.inv_freq, measured.inv_freq, rtol=2e-6, atol=0)
    assert computed.attention_factor == pytest.approx(measured.attention_factor)


# In a browser.


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        own = driver.chromium.executable_path  # what "playwright install chromium" installs
        found = next(filter(None, map(shutil.which, (*INSTALLED, own))), None)
        if found is None:
            pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened:
    """A page in the browser, with what it said and asked for."""

    def __init__(self, browser: Any, file: Path, width: int = 1280) -> None:
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.tab = browser.new_page(viewport={"width": width, "height": 900})
        self.tab.on("console", lambda message: self.messages.append(message.text))
        self.tab.on("pageerror", lambda error: self.messages.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(file.as_uri())
        self.tab.wait_for_selector("body[data-ready]")


@pytest.fixture(scope="module")
def opened(browser: Any, made: Path) -> Opened:
    return Opened(browser, made)


def test_a_page_is_silent(opened, made):
    """It has no word for the console, asks for nothing but itself, and runs nobody's name."""
    assert opened.messages == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [made.as_uri()]
    assert opened.tab.locator("img[onerror]").count() == 0


def test_a_button_saves_the_csv_of_the_report(opened, frame):
    opened.tab.locator("summary", has_text="Every table").click()
    opened.tab.locator("details[data-table=scores] > summary").click()
    with opened.tab.expect_download() as waiting:
        place = opened.tab.locator("details[data-table=scores]")
        place.get_by_role("button", name="scores.csv").first.click()
    saved = Path(waiting.value.path()).read_text(encoding="utf-8")
    assert saved == csv(scores.make(frame))


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_has_the_answer_its_figure_and_how_to_use_it(
    browser, width, height, tmp_path
):
    run = ROOT / "results" / "reference"
    every = make_frame([run])
    file = tmp_path / "page.html"
    file.write_text(
        page(every, write_reports(every, None, ["best"]).tables, (), "", [read_run(run)])
    )
    tab = browser.new_page(viewport={"width": width, "height": height})
    tab.goto(file.as_uri())
    for place in ("h1", ".use", "#answer img", "#command", "#config"):
        box = tab.locator(place).bounding_box()
        assert box["y"] + min(box["height"], 60) <= height
    assert "Use yarn: at most 22 %" in tab.locator(".use").inner_text()
    assert tab.locator("#command").inner_text() == (
        "ropewalk export reference --scaling yarn --length 2048 --to transformers"
    )
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert all(tab.evaluate("[...document.images].map(i => i.naturalWidth > 0)"))
    tab.close()


def test_a_table_sorts_and_filters(opened):
    ranking = opened.tab.locator("details[data-table=scores]")
    place = ranking.locator("th").all_inner_texts().index("score")
    head = ranking.locator("th button").nth(place)
    cells = ranking.locator(f"tbody td:nth-child({place + 1})")
    head.click()
    rising = [float(text) for text in cells.all_inner_texts() if text]
    assert rising == sorted(rising)
    head.click()
    assert [float(text) for text in cells.all_inner_texts() if text] == rising[::-1]
    assert ranking.locator("th[aria-sort=descending]").count() == 1
    ranking.get_by_role("searchbox").fill("yarn")
    assert 0 < ranking.locator("tbody tr").count() < len(rising)


def test_a_large_sweep_fits_a_file_and_a_phone(browser, tmp_path):
    """Of 25 methods and 12 lengths: under 3 MB, and only its wide tables scroll sideways."""
    names = ("none", *(f"yarn:factor={number}" for number in range(24)))
    frame = with_losses(sweep(scalings=names, lengths=tuple(256 * n for n in range(1, 13))))
    file = tmp_path / "page.html"
    file.write_text(html(frame, best, scores), encoding="utf-8")
    assert file.stat().st_size < 3e6
    opened = Opened(browser, file, width=390)
    assert opened.messages == []
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 390
    opened.tab.close()
