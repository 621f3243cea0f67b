"""One static HTML file for a run: the answer, the figures, the tables, and how it was measured."""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.reports import answer, curves, position, retrieval, verdict
from ropewalk.harness.reports._style import drawing
from ropewalk.harness.reports._text import without_missing
from ropewalk.harness.reports._write import Written, notes, sections
from ropewalk.harness.reports.cells import cells
from ropewalk.harness.runs.provenance import documents, facts
from ropewalk.harness.stats.cells import records

FIGURES: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "How much worse than the best": answer.make,
    "Score against length": curves.make,
    "Retrieval by length and depth": lambda frame: retrieval.draw(frame, frame),
    "Loss by position": position.make,
}
# Text stays text, which is a third of the size; Verdana has the widths of DejaVu Sans.
FONT: Any = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans", "Verdana"]}
MOST_ROWS = 200  # of one table on the page; the files beside it have them all


def write_page(
    file: Path,
    frame: pd.DataFrame,
    runs: Collection[Mapping[str, Any]],
    written: Written,
    note: str = "",
) -> None:
    """Write the page of a frame, with the reports that were made of it and the runs' records."""
    html = page(frame, runs, written, note)
    make_folder(file.absolute().parent)
    with replacing(file) as new:
        new.write(html.encode())


def page(
    frame: pd.DataFrame, runs: Collection[Mapping[str, Any]], written: Written, note: str = ""
) -> str:
    """Return the HTML of a frame's page; the template escapes every text of a record."""
    table = cells(frame)
    _, answers = verdict.summary(table)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html: str = environment.get_template("page.html.jinja").render(
        title=", ".join(frame["model"].unique()),
        answers=[f"{line[0].upper()}{line[1:]}" for line in answers],
        note=note,
        command=next(_exports(table, runs), ""),
        figures=list(_figures(frame)),
        sections=[(title, _html(of)) for title, of in sections(frame, table).items() if of],
        notes=notes(table),
        reports=[
            (name, report.about, _html(report.display or {name: report.table}), report.notes)
            for name, report in written.tables.items()
        ],
        facts=facts(runs),
        documents=_html({"": documents(runs)}),
    )
    return html


def _html(tables: Mapping[str, pd.DataFrame]) -> list[tuple[str, Markup]]:
    return [
        (
            title,
            Markup(without_missing(table.head(MOST_ROWS)).to_html(index=False, border=0)),
        )
        for title, table in tables.items()
    ]  # pandas escapes the texts


def _exports(table: pd.DataFrame, runs: Collection[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the command that writes the method to use at the longest length for a server."""
    used = table[table["use"].fillna(value=False)].sort_values("length", ascending=False)
    for row in records(used):
        for run in runs:
            model, method = run["asked"].get("model"), run["methods"].get(row["scaling"])
            if run["model"]["name"] == row["model"] and isinstance(model, str) and method:
                engine = "hf-code" if row["needs_code"] else "transformers"
                words = ["--scaling", method["given"], "--length", str(row["length"])]
                yield shlex.join(["ropewalk", "export", model, *words, "--to", engine])


def _figures(frame: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
    for title, draw in FIGURES.items():
        try:
            figure = draw(frame)
        except ValueError:
            continue
        content = io.BytesIO()
        with drawing(), rc_context(FONT):
            figure.savefig(content, format="svg", metadata={"Date": None})
        source = f"data:image/svg+xml;base64,{base64.b64encode(content.getvalue()).decode()}"
        yield title, source, str(figure.get_label())
