"""A folder for any web server: page, tables, figures, and the run, which reports can read again."""

from __future__ import annotations

from pathlib import Path

from harness.reports._write import write_reports
from harness.reports.page.write import write_page
from harness.runs.folders import REPORTS
from harness.share.source import Source, write_copy


def write(source: Source, out: Path) -> list[Path]:
    """Write a run folder whose ``index.html`` is the page of all reports; return its files."""
    files = write_copy(source.record, source.samples, out)
    page, *reports = write_files(source, out)
    return [page, *files, *reports]


def write_files(source: Source, out: Path) -> list[Path]:
    """Write the page of all reports, their tables and figures; return the files."""
    written = write_reports(source.frame, out / REPORTS, None, source.note, source.paper)
    page = out / "index.html"
    write_page(page, source.frame, [source.record], written.tables, source.note)
    return [page, *written.files]
