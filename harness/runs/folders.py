"""Choose the run folders of a sweep: one per model, and never one of another sweep."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.runs.comparable import NAMES, PROTOCOLS, SEEDS, differing
from harness.runs.schema import checked_run
from harness.runs.store import RUN, SAMPLES

REPORTS = "reports"  # of all models together, beside their folders
Record = Mapping[str, Any]


def run_folders(out: Path | None, records: Sequence[Record], *, several: bool) -> list[Path]:
    """Return the run folder of each model's record; of several models, inside ``out``.

    Raises UserError where several models have no ``out``, or would share a folder.
    """
    if not several:
        return [out or default_folder(records[0])]
    if out is None:
        raise UserError("several models are measured: name the folder of their runs with --out.")
    models = [str(record["model"]["name"]) for record in records]
    for model in models:
        if models.count(model) > 1 or model == REPORTS:
            raise UserError(
                f"{out} has room for one folder called {model!r}: rename the folder of a model, or"
                " sweep it apart."
            )
    return [out / model for model in models]


def default_folder(record: Record) -> Path:
    """Return results/run-MODEL; where that is another sweep's, the next free number of it.

    The same sweep, or one that contains it, uses the same folder again.
    """
    for number in count(1):
        name = f"run-{record['model']['name']}" + (f"-{number}" if number > 1 else "")
        folder = Path("results") / name
        before = record_in(folder)
        if before is None or (
            asked(before) <= asked(record)
            and not any(_other_question(before, record))
            and other_model(before, record) is None
        ):
            break
    return folder


def record_in(folder: Path) -> dict[str, Any] | None:
    """Return the record of a folder, None of one without; raise UserError for a damaged one.

    Raises it too for samples without a record, which are not those of a run: it is written first.
    A folder that cannot be looked into counts as one without: writing to it then says why. What is
    no folder, and no place for one, is rejected here, in a dry run too.
    """
    first = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not first.is_dir():
        raise UserError(f"{first} is not a folder; choose another --out.")
    try:
        there, samples = (folder / RUN).exists(), folder / SAMPLES
        others = not there and samples.exists() and samples.stat().st_size > 0
    except OSError:
        there = others = False
    if others:
        raise UserError(
            f"{folder} has a {SAMPLES} but no {RUN}, so it is not a run; choose another --out."
        )
    return checked_run(folder) if there else None


def asked(record: Record) -> set[tuple[str, str, str]]:
    """Return every question of every cell of a record, with its method."""
    return {
        (cell["scaling"], cell["key"], question)
        for cell in record["cells"]
        for question in record["tasks"][cell["task"]]["questions"][str(cell["length"])]
    }


def check_same_question(folder: Path, old: Record, new: Record) -> None:
    """Raise UserError where another sweep's record would be replaced.

    The same sweep may have more cells than before, or fewer.
    """
    unlike = next(_other_question(old, new), None)
    if unlike:
        raise UserError(f"{folder} has another sweep, with other {unlike}; choose another --out.")


def other_model(old: Record, new: Record) -> str | None:
    """Return a field of the model that two records have differently; None where none is.

    An earlier version may have recorded fewer.
    """
    model = new["model"]
    return next((key for key, one in old["model"].items() if one != model.get(key)), None)


def _other_question(old: Record, new: Record) -> Iterator[str]:
    """Yield the settings that make a sweep another one, not the same with more or fewer cells."""
    yield from differing(old, new, (SEEDS, NAMES, PROTOCOLS))
    texts = [{document["sha256"] for document in run["documents"]["read"]} for run in (old, new)]
    if not (texts[0] <= texts[1] or texts[1] <= texts[0]):
        yield "documents"


def reports_of(run: Path) -> Path:
    """Return the reports folder of a run; raise UserError where it is a link."""
    if (run / REPORTS).is_symlink():
        raise UserError(
            f"{run / REPORTS} is a symbolic link; name a folder for the reports with --out."
        )
    return run / REPORTS


def runs_in(places: Sequence[Path]) -> list[Path]:
    """Return the run folders among the given ones and directly inside them.

    Files and reports folders, which ``FOLDER/*`` includes, are ignored where there is a run; a
    place that does not exist is returned, for its error.
    """
    found = [
        sorted(path.parent for path in (*place.glob(RUN), *place.glob(f"*/{RUN}")))
        if place.exists()
        else [place]
        for place in places
    ]
    return [run for runs in found for run in runs] or list(places)
