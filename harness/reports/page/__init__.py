"""Put tables, charts and what draws them into one HTML file that asks no network for anything."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rcParams
from matplotlib.figure import Figure
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.reports import curves, loss_by_position, retrieval
from ropewalk.harness.reports._write import Written
from ropewalk.harness.reports.best import answer
from ropewalk.harness.reports.page.serving import Serving, serving
from ropewalk.harness.reports.plots.answer import draw_answer, longest
from ropewalk.harness.reports.plots.style import COLUMN, Paper, drawing, lay_out
from ropewalk.harness.reports.writing.tables import RenderedTable, csv, headed, wide
from ropewalk.harness.runs.provenance import documents, facts
from ropewalk.harness.stats.cells import CELL, cells
from ropewalk.harness.stats.checkpoints import MOST_NAMED
from ropewalk.harness.stats.decision import decisions

HERE = Path(__file__).parent
FINER = re.compile(r"(\d\.\d\d)\d+")  # than a hundredth of a point, which no screen shows
CELLS = "Score, 95 % interval, n and status of every cell: the numbers of the curves."


class Picture(NamedTuple):
    """A figure as SVG, with its title, its caption, and itself as the address of an image."""

    title: str
    svg: str
    caption: str
    source: str


def page(
    frame: pd.DataFrame,
    reports: Mapping[str, RenderedTable],
    facts: Sequence[tuple[str, Sequence[str]]] = (),
    note: str = "",
    runs: Collection[Mapping[str, Any]] = (),
    figures: Mapping[str, Figure] | None = None,
) -> str:
    """Return the HTML of a frame's page.

    ``reports`` are the tables by name, ``figures`` the figures of reports that were drawn before;
    ``facts`` say how it was measured. No text of a record is read as markup: the template escapes
    all, the data are compressed, in letters and digits, and the page's policy runs only the script
    whose hash it names.
    """
    scored = RenderedTable(CELLS, [], cells(frame))
    sources = {**reports, "scores": reports.get("scores", scored), **dict(_more_tables(frame))}
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    lengths = answer(reports["best"].table) if "best" in reports else []
    last = [(model["model"], model["lengths"][-1]) for model in lengths]
    uses = [(name, row["use"], row["bound"]) for name, row in last if row["use"]]
    answered, narrow, more = _pictures(frame, figures or {})
    environment = Environment(  # it escapes every text
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    data = {"tables": _embedded(sources), "figures": {figure.title: figure.svg for figure in more}}
    packed = json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    html: str = environment.get_template("page.html.jinja").render(
        title=_title(frame),
        question=_question(frame, lengths),
        spoken=" ".join(f"{model}: use {method}. {bound}." for model, method, bound in uses),
        answer=uses,
        figures={"answer": answered, "narrow": narrow, "more": more},
        serving=_serving(runs, lengths),
        lengths=lengths,
        scores=[
            (title, list(table.columns), table.to_numpy().tolist())
            for title, table in headed(wide(cells(frame)), frame).items()
        ],
        reports=reports,
        sources=sources,
        facts=facts,
        note=note,
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; "
        "style-src 'unsafe-inline'; img-src data:",  # and no connection
        script=Markup(script),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        content=base64.b64encode(gzip.compress(packed, mtime=0)).decode(),
    )
    return html


def _title(frame: pd.DataFrame) -> str:
    """Return the names of the models, of many that are compared as methods their number."""
    if "of_model" in frame and (count := frame["of_model"].nunique()) > MOST_NAMED:
        return f"{count} models compared"
    return ", ".join([*frame["model"].unique()][:MOST_NAMED])


def _question(frame: pd.DataFrame, lengths: Sequence[Mapping[str, Any]]) -> str:
    if not lengths:
        return _title(frame)
    last = [model["lengths"][-1] for model in lengths]
    here = {row["length"]: row["relative"] for row in last}
    where = "its longest length" if len(here) > 1 else f"{last[0]['length']:,} tokens"
    times = f", {last[0]['relative']} its window" if len(here) == 1 and last[0]["relative"] else ""
    if "of_model" in frame:
        return f"Which of {_title(frame)} is best at {where}{times}?"
    models = _title(frame) if len(lengths) == 1 else "each model"
    return f"Which scaling should {models} use at {where}{times}?"


def _serving(
    runs: Collection[Mapping[str, Any]], lengths: Sequence[Mapping[str, Any]]
) -> Serving | None:
    """Return how to serve the method of the first model, at its longest length."""
    if not lengths:
        return None
    row = lengths[0]["lengths"][-1]
    kin = [run for run in runs if run["model"]["name"] == lengths[0]["model"]]
    found = (serving(run, str(row["use"]), row["length"]) for run in kin)
    return next(filter(None, found), None)


def _pictures(
    frame: pd.DataFrame, known: Mapping[str, Figure]
) -> tuple[Picture | None, Picture | None, list[Picture]]:
    """Return the figure that answers, the same for a narrow screen, and the others.

    ``known`` has figures of reports that are drawn already.
    """
    found = longest(decisions(frame)) if frame["score"].notna().any() else []
    kinds: dict[str, tuple[str, Callable[[], Figure]]] = {
        "best": ("Answer", partial(draw_answer, frame, found)),
        "curves": ("Curves", partial(curves.make, frame)),
        "retrieval": ("Retrieval by length and depth", partial(retrieval.draw, frame, frame)),
        "loss_by_position": ("Loss by position", partial(loss_by_position.make, frame)),
    }
    answered, *more = (
        _picture(title, partial(known.__getitem__, report) if report in known else draw)
        for report, (title, draw) in kinds.items()
    )
    narrow = _picture("Answer", partial(draw_answer, frame, found[:1]), Paper(width=COLUMN))
    return answered, narrow or answered, [picture for picture in more if picture]


def _picture(title: str, draw: Callable[[], Figure], paper: Paper | None = None) -> Picture | None:
    """Return a figure as SVG with its text as text; None where it does not apply."""
    try:
        with drawing(paper):
            figure = draw()
            lay_out(figure)
            rcParams["svg.fonttype"], rcParams["font.sans-serif"] = "none", ["DejaVu Sans"]
            content = io.StringIO()
            figure.savefig(content, format="svg", metadata={"Date": None})
    except ValueError:
        return None
    svg = FINER.sub(r"\1", content.getvalue())
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return Picture(title, svg, str(figure.get_label()), source)


DOCUMENTS = "The documents that were read, and the hashes of their texts."


def write_page(
    file: Path,
    frame: pd.DataFrame,
    runs: Collection[Mapping[str, Any]],
    written: Written,
    note: str = "",
) -> None:
    """Write the page of a frame, with the reports that were made of it and the runs' records."""
    tables = {**written.tables, "documents": RenderedTable(DOCUMENTS, [], documents(runs))}
    html = page(frame, tables, facts(runs), note, runs, written.figures)
    make_folder(file.absolute().parent)
    with replacing(file) as new:
        new.write(html.encode())


def _embedded(sources: Mapping[str, RenderedTable]) -> dict[str, dict[str, Any]]:
    """Return every table as the text of its CSV file, and which of its columns are numbers."""
    return {
        name: {
            "csv": csv(source.table),
            "numbers": [
                str(name)
                for name, column in source.table.items()
                if is_numeric_dtype(column) and not is_bool_dtype(column)
            ],
        }
        for name, source in sources.items()
    }


def _more_tables(frame: pd.DataFrame) -> Iterator[tuple[str, RenderedTable]]:
    """Yield what only the page has: losses by position, shares by depth, and failures."""
    with suppress(ValueError):  # no task scored whole windows
        columns = [*CELL, "trained_length", "position", "score", "low", "high", "documents"]
        table = _short(loss_by_position.positions(frame)[columns])
        about = "Mean loss by position (nats per token), 95 % interval and number of documents."
        yield "positions", RenderedTable(about, [], table)
    if len(trials := retrieval.hidden(frame)):
        groups = trials.groupby([*CELL, "trained_length", "depth"], sort=False)["value"]
        table = _short(groups.agg(found="mean", n="size").reset_index())
        about = "Share found at every length and depth (0 is the start of the text), of n trials."
        yield "depths", RenderedTable(about, [], table)
    if len(lost := frame[frame["status"] != "ok"]):
        reason = lost["reason"].fillna("") if "reason" in lost else ""
        counted = lost.assign(reason=reason).groupby([*CELL, "status", "reason"], sort=False)
        about = "Samples without a number, and why: they are in no score."
        table = counted.size().rename("samples").reset_index()
        yield "failures", RenderedTable(about, [], table)


def _short(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of means with six digits per number: there may be thousands of rows."""
    numbers = table.select_dtypes("float").map(lambda value: float(f"{value:.6g}"))
    return table.assign(**{str(name): numbers[name] for name in numbers})
