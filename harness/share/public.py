"""A run as it is published: without file paths, and the folder that a web server can show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.errors import UserError
from harness.files import make_folder, replacing
from harness.reports._write import write_reports
from harness.reports.page import write_page
from harness.reports.plots.style import Paper
from harness.runs.compatible import raw_text
from harness.runs.frame import make_frame
from harness.runs.store import REPORTS, SAMPLES, checked_run, checked_samples, write_run
from harness.share.clean import clean_record, clean_samples, entry
from harness.stats.cells import SCORE, cells, shared

if TYPE_CHECKING:
    from harness.sweep.rerun import RequestedTask


@dataclass(frozen=True)
class PublicRun:
    """What is published of a run; ``frame`` is made of these files alone.

    ``note`` is a sentence for every table and figure; ``requests`` are those whose text is
    published, by the task's label: none unless the user wants it.
    """

    record: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]
    frame: pd.DataFrame
    paper: Paper
    note: str
    requests: Mapping[str, RequestedTask] = field(default_factory=dict)


def public_run(
    run: Path,
    tasks: Iterable[str],
    paper: Paper,
    frame: pd.DataFrame,
    out: Path,
    requests: Mapping[str, RequestedTask] | None = None,
) -> PublicRun:
    """Return a run without paths; raise UserError where that would change a score or a status.

    ``frame`` is that of the run's own files. A copy is written below ``out`` and removed.
    """
    private = checked_run(run)
    alike = UserError(
        f"{run} cannot be published: without their folders, files that it names have the same "
        "name; measure it with files of different names."
    )
    record, samples = clean_record(private), clean_samples(checked_samples(run).values(), private)
    if any(len(record[kind]) < len(private[kind]) for kind in ("methods", "tasks")):
        raise alike
    copy = out / "run"
    _write_copy(record, samples, copy)
    public = make_frame([copy], tasks)
    shutil.rmtree(copy)
    numbers = [*SCORE, "status"]
    if not cells(frame)[numbers].equals(cells(public)[numbers]):
        raise alike
    cleaned = {entry(label): one for label, one in (requests or {}).items()}
    return PublicRun(record, samples, public, paper, " ".join(raw_text([record])), cleaned)


def write(run: PublicRun, out: Path) -> list[Path]:
    """Write a run folder whose ``index.html`` is the page of all reports; return its files."""
    files = _write_copy(run.record, run.samples, out)
    page, *reports = write_page_and_reports(run, out)
    return [page, *files, *reports]


def write_page_and_reports(run: PublicRun, out: Path) -> list[Path]:
    """Write the page of all reports, their tables and figures; return the files."""
    page = out / "index.html"
    with shared():
        written = write_reports(run.frame, out / REPORTS, None, run.note, run.paper)
        write_page(page, run.frame, [run.record], written, run.note)
    return [page, *written.files]


def _write_copy(
    record: Mapping[str, Any], samples: Iterable[Mapping[str, Any]], folder: Path
) -> list[Path]:
    make_folder(folder)
    write_run(folder, record)
    with replacing(folder / SAMPLES) as file:
        for sample in samples:
            file.write((json.dumps(sample, allow_nan=False, ensure_ascii=False) + "\n").encode())
    return [folder / "run.json", folder / SAMPLES]
