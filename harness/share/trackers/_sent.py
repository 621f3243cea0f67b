"""What a tracker is sent of a run folder: settings, scores by length, and the files of reports."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from harness.plugins import names
from harness.reports.stats.cells import cells
from harness.runs.folders import REPORTS
from harness.runs.frame import NOT_MEASURED
from harness.runs.provenance import command, facts
from harness.share.clean import base, clean_record, entry, sentence

Scores = dict[int, dict[str, float]]  # by length, by name
FACTS = ("documents", "seed", "machine")


def settings(record: Mapping[str, Any]) -> dict[str, str]:
    """Return how a run is measured: settings of the model, of every method and of every task."""
    public = clean_record(record)
    told = {name: "; ".join(lines) for name, lines in facts([public]) if name in FACTS}
    model = {f"model {name}": str(one) for name, one in public["model"].items() if _plain(one)}
    for kind in ("task", "method"):
        told[f"{kind}s"] = ", ".join(public[f"{kind}s"])
        for label, one in public[f"{kind}s"].items():
            version = {"version": one["version"]} if "version" in one else {}
            told[f"{kind} {label}"] = _listed({**version, **one["options"]})
    lengths = ", ".join(map(str, public["lengths"]))
    return {**model, **told, "lengths": lengths, "command": command(public)}


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "no options"


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float)


def scores(frame: pd.DataFrame) -> Scores:
    """Return the scores of the cells that are complete, with the ends of their intervals.

    Raises ValueError where two cells have one name without the folders of their files.
    """
    found: Scores = {}
    for row in cells(frame).to_dict("records"):
        if pd.isna(row["score"]) or NOT_MEASURED in row["status"]:
            continue
        task, scaling = entry(row["task"]), entry(row["scaling"])
        values = found.setdefault(int(row["length"]), {})
        if f"{task}/{scaling}" in values:
            raise ValueError(f"{task}, {scaling} are two without the folders of their files")
        ends = {f"{task} {end}/{scaling}": row[end] for end in ("low", "high")}
        values |= {f"{task}/{scaling}": row["score"]}
        values |= {name: end for name, end in ends.items() if pd.notna(end)}
    return found


def write_reports_of(
    run: Path, tasks: Iterable[str], frame: pd.DataFrame, out: Path, *, made: bool = False
) -> None:
    """Write the page, tables and figures of a run, without places.

    ``made``: the run's own were made just now, and are taken where no name in them has a place.
    """
    # Not needed while a run is measured: what draws figures takes a second to import.
    from harness.reports._figures import asked, paper
    from harness.reports._write import FIGURES, TABLES, write_reports
    from harness.reports.page.write import write_page
    from harness.share.folder import write_files
    from harness.share.source import source

    drawn = paper(asked(run, {}), frame)
    found = source(run, tasks, drawn, frame)
    kinds = {"model": base, "scaling": entry, "task": entry, "unit": base, "reason": sentence}
    private = any(
        clean(name) != name
        for kind, clean in kinds.items()
        for name in frame[kind].dropna().unique()
    )
    if private or not made:
        write_files(found, out)
        return
    (out / REPORTS).mkdir()
    for file in (
        run / REPORTS / (name + end) for name in names("report") for end in (*TABLES, *FIGURES)
    ):
        if file.is_file():
            shutil.copy(file, out / REPORTS)
    tables = write_reports(found.frame, None, None, found.note, drawn).tables
    write_page(out / "index.html", found.frame, [found.record], tables, found.note)
