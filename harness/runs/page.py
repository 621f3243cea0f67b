"""Write the page of runs: every table and chart in one file, and how they were measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from harness.files import make_folder, replacing
from harness.reports.page.write import page
from harness.reports.writing.tables import RenderedTable
from harness.runs.provenance import documents, facts

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
