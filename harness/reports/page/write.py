"""Put tables, charts and what draws them into one HTML file that asks no network for anything."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from harness.files import make_folder, replacing
from harness.reports.best import answer
from harness.reports.loss_by_position import positions as mean_losses
from harness.reports.page.charts import curves, looks, losses
from harness.reports.plots.methods import methods
from harness.reports.plots.style import MARKERS
from harness.reports.retrieval import hidden
from harness.reports.writing.tables import RenderedTable, csv
from harness.runs.provenance import documents, facts
from harness.stats.cells import CELL, cells
from harness.stats.checkpoints import MOST_NAMED

HERE = Path(__file__).parent
LIBRARIES = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")
OWN = ("tables.js", "page.js")


def page(
    frame: pd.DataFrame,
    reports: Mapping[str, RenderedTable],
    facts: Sequence[tuple[str, Sequence[str]]] = (),
    note: str = "",
) -> str:
    """Return the HTML of a frame's page.

    ``reports`` are the tables by name; ``facts`` say how it was measured. No text of a record is
    read as markup: the template escapes all, the data are compressed, in letters and digits, and
    the page's policy runs only the scripts whose hashes it names.
    """
    known, table = methods(frame, distinct=len(MARKERS)), cells(frame)
    sources = {name: Source(rendered.table, rendered.about) for name, rendered in reports.items()}
    sources.setdefault("scores", Source(table, CELLS))
    sources |= {**positions(frame), **depths(frame), **failures(frame)}
    drawn = looks(known)
    lost = known.drawn(sources["positions"].table) if "positions" in sources else None
    content = {
        "sources": embedded(sources),
        "methods": drawn,
        "charts": {
            "curves": curves(known.drawn(table), drawn),
            "losses": [] if lost is None else losses(lost, drawn),
        },
    }
    scripts = [(HERE / "vendor" / name).read_text(encoding="utf-8") for name in LIBRARIES]
    scripts += [(HERE / name).read_text(encoding="utf-8") for name in OWN]
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = [f"'sha256-{digest}'" for digest in hashes]
    best = reports.get("best")
    environment = Environment(  # it escapes every text
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    packed = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    html: str = environment.get_template("page.html.jinja").render(
        title=_title(frame),
        compared="of_model" in frame,
        answer=answer(best.table) if best else [],
        reports=reports,
        sources=sources,
        facts=facts,
        note=note,
        policy=f"default-src 'none'; script-src {' '.join(allowed)}; "
        "style-src 'unsafe-inline'; img-src data:",  # and no connection
        scripts=list(map(Markup, scripts)),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        licences=(HERE / "vendor" / "LICENSES.txt").read_text(encoding="utf-8"),
        content=base64.b64encode(gzip.compress(packed, mtime=0)).decode(),
    )
    return html


CELLS = "Score, 95 % interval, n and status of every cell: the numbers of the curves."


def _title(frame: pd.DataFrame) -> str:
    """Return the names of the models, of many that are compared as methods their number."""
    if "of_model" in frame and (count := frame["of_model"].nunique()) > MOST_NAMED:
        return f"{count} models compared"
    return ", ".join([*frame["model"].unique()][:MOST_NAMED])


DOCUMENTS = "The documents that were read, and the hashes of their texts."


def write_page(
    file: Path,
    frame: pd.DataFrame,
    runs: Collection[Mapping[str, Any]],
    tables: Mapping[str, RenderedTable],
    note: str = "",
) -> None:
    """Write the page of a frame, with the tables that were made of it and the runs' records."""
    whole = {**tables, "documents": RenderedTable(DOCUMENTS, [], documents(runs))}
    html = page(frame, whole, facts(runs), note)
    make_folder(file.absolute().parent)
    with replacing(file) as new:
        new.write(html.encode())


@dataclass(frozen=True)
class Source:
    """A table and, in a sentence, what it has."""

    table: pd.DataFrame
    about: str


def embedded(sources: Mapping[str, Source]) -> dict[str, dict[str, Any]]:
    """Return every table as the text of its CSV file, and which of its columns are numbers."""
    return {
        name: {
            "csv": csv(source.table),
            "numbers": [
                str(column)
                for column in source.table
                if is_numeric_dtype(source.table[column])
                and not is_bool_dtype(source.table[column])
            ],
        }
        for name, source in sources.items()
    }


def positions(frame: pd.DataFrame) -> dict[str, Source]:
    """Return the losses by position, of sweeps that scored whole windows."""
    try:
        table = mean_losses(frame)
    except ValueError:
        return {}
    table = table[[*CELL, "trained_length", "position", "score", "low", "high", "documents"]]
    about = "Mean loss by position (nats per token), 95 % interval and number of documents."
    return {"positions": Source(_short(table), about)}


def depths(frame: pd.DataFrame) -> dict[str, Source]:
    """Return the share found at every length and depth, of tasks that hide something at one."""
    trials = hidden(frame)
    if trials.empty:
        return {}
    groups = trials.groupby([*CELL, "trained_length", "depth"], sort=False)["value"]
    table = groups.agg(found="mean", n="size").reset_index()
    about = "Share found at every length and depth (0 is the start of the text), of n trials."
    return {"depths": Source(_short(table), about)}


def failures(frame: pd.DataFrame) -> dict[str, Source]:
    """Return what has no number, how many samples of a cell, and why."""
    lost = frame[frame["status"] != "ok"]
    if lost.empty:
        return {}
    reason = lost["reason"] if "reason" in lost else pd.Series(index=lost.index, dtype=object)
    counted = lost.assign(reason=reason.fillna("")).groupby([*CELL, "status", "reason"], sort=False)
    about = "Samples without a number, and why: they are in no score."
    return {"failures": Source(counted.size().rename("samples").reset_index(), about)}


def _short(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of means with six digits a number: there may be thousands of rows."""
    numbers = table.select_dtypes("float").map(lambda value: float(f"{value:.6g}"))
    return table.assign(**{str(name): numbers[name] for name in numbers})
