"""A run as it is published: its files without places, and the frame that anyone makes of those."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.errors import UserError
from harness.files import make_folder, replacing
from harness.reports.plots.style import Paper
from harness.runs.comparable import raw_text
from harness.runs.frame import make_frame
from harness.runs.schema import checked_run, checked_samples
from harness.runs.store import SAMPLES, write_run
from harness.share.clean import clean_record, clean_samples, entry
from harness.stats.cells import SCORE, cells

if TYPE_CHECKING:
    from harness.sweep.rerun import Asked


@dataclass(frozen=True)
class Source:
    """What a target publishes; ``note`` is a sentence for every table and figure.

    ``asked`` has the questions whose text is published, by the task's label: none unless the user
    wants it.
    """

    record: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]
    frame: pd.DataFrame
    paper: Paper
    note: str
    asked: Mapping[str, Asked] = field(default_factory=dict)


def source(
    run: Path,
    tasks: Iterable[str],
    paper: Paper,
    frame: pd.DataFrame,
    asked: Mapping[str, Asked] | None = None,
) -> Source:
    """Return a run without places; raise UserError where that would change a score or a status.

    ``frame`` is that of the run's own files.
    """
    whole = checked_run(run)
    record, samples = clean_record(whole), clean_samples(checked_samples(run).values(), whole)
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "run"
        write_copy(record, samples, copy)
        public = make_frame([copy], tasks)
    numbers = [*SCORE, "status"]
    if not cells(frame)[numbers].equals(cells(public)[numbers]):
        raise UserError(
            f"{run} cannot be published: without their folders, files that it names have the same "
            "name; measure it with files of different names."
        )
    cleaned = {entry(label): one for label, one in (asked or {}).items()}
    return Source(record, samples, public, paper, " ".join(raw_text([record])), cleaned)


def write_copy(
    record: Mapping[str, Any], samples: Iterable[Mapping[str, Any]], folder: Path
) -> list[Path]:
    """Write a run folder from its record and samples."""
    make_folder(folder)
    write_run(folder, record)
    with replacing(folder / SAMPLES) as new:
        for sample in samples:
            new.write((json.dumps(sample, allow_nan=False, ensure_ascii=False) + "\n").encode())
    return [folder / "run.json", folder / SAMPLES]
