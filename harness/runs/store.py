"""Read and write a run folder: ``run.json`` is its record, ``samples.jsonl`` its samples.

Runs are also read from a Parquet file, where the path of a run is ``FILE.parquet/NAME``.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic_core import from_json

from ropewalk.harness.errors import UserError, foreign, reason
from ropewalk.harness.files import make_folder, replacing, sync_names
from ropewalk.harness.runs import parquet
from ropewalk.harness.runs.record import RUN_RECORD, SAMPLE_RECORD, SCHEMA, Run, SampleRecord

RUN, SAMPLES, REPORTS = "run.json", "samples.jsonl", "reports"
KEPT = ("ok", "not_finite", "too_long")  # a sample of another status is measured again
Key = tuple[str, str]  # a cell's key and a question's digest


@contextmanager
def writing(folder: Path) -> Iterator[BinaryIO]:
    """Lock the samples file of a folder and yield it, open at the end.

    A last line that a kill or a power cut left incomplete is cut off. Raises UserError while
    another process writes, and where the file cannot be written.
    """
    make_folder(folder, "run folder")
    with ExitStack() as stack:
        try:
            file = stack.enter_context((folder / SAMPLES).open("ab+", buffering=0))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, in any way
            _cut_torn_line(file)
        except BlockingIOError:
            raise UserError(
                f"another process is writing {folder}; wait for it or choose another --out."
            ) from None
        except OSError as error:
            raise UserError(
                f"run folder {folder} cannot be written: {SAMPLES}: {reason(error)}."
            ) from None
        sync_names(folder)
        yield file


def _cut_torn_line(file: BinaryIO) -> None:
    """Cut off what no other line follows and is no record.

    Each line was on the disk before the next was written, so no other can be incomplete; a power
    cut may leave the length of a line without its characters.
    """
    size = file.seek(0, os.SEEK_END)
    if not size:
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = content.rfind(b"\n") + 1
        last = content.rfind(b"\n", 0, max(end - 1, 0)) + 1
        try:
            from_json(content[last:end] or b"{}")
        except ValueError:
            end = last
    if end < size:
        file.truncate(end)
        os.fsync(file.fileno())
    file.seek(end)


def append(file: BinaryIO, sample: Mapping[str, Any]) -> None:
    """Write one sample and sync it to the disk.

    Raises UserError where it cannot be written (a full disk), and removes the part that was.
    """
    line = (json.dumps(sample, allow_nan=False, ensure_ascii=False) + "\n").encode()
    end = file.tell()
    try:
        while line:  # a disk that fills up writes a part
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            file.truncate(end)
        raise UserError(
            f"{file.name} cannot be written: {reason(error)}; everything measured before is kept, "
            "and the same command continues."
        ) from None


def each_sample(folder: Path) -> Iterator[SampleRecord]:
    """Yield the samples of a run, without an incomplete last line; none where there is no file.

    Of several with one cell and question the last counts. Raises UserError for a broken line.
    """
    if parquet.runs_at(folder) == [folder]:
        yield from parquet.samples_of(folder)
        return
    path = folder / SAMPLES
    if not path.exists():
        return
    with foreign(f"{path} cannot be read"), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                sample = SAMPLE_RECORD.validate_json(line)
            except ValueError as error:
                if not line.endswith(b"\n") or not file.readline().endswith(b"\n"):
                    return  # it is the last
                raise UserError(
                    f"{path}, line {number} is broken; take the line out to measure it again: "
                    f"{reason(error)}"
                ) from None
            if line.endswith(b"\n"):
                yield sample


def read_samples(folder: Path) -> dict[Key, SampleRecord]:
    """Return the samples of a run by cell key and question, as ``each_sample`` reads them.

    A file of many samples with losses takes some twenty times its size in memory.
    """
    return {(sample["cell"], sample["question"]): sample for sample in each_sample(folder)}


def measured(samples: Iterable[Mapping[str, Any]]) -> set[Key]:
    """Return the cell key and question of those samples that need not be measured again."""
    return {(one["cell"], one["question"]) for one in samples if one["status"] in KEPT}


def read_run(folder: Path) -> Run:
    """Return the record of a run; raise UserError where the folder has none."""
    path = folder / RUN
    with foreign(f"{path} cannot be read"):
        if parquet.runs_at(folder) == [folder]:
            record = from_json(parquet.record_of(folder))
        elif path.exists():
            record = from_json(path.read_bytes())
        else:
            raise UserError(f"{folder} is not a run folder: it has no {RUN}.")
        RUN_RECORD.validate_python(record)
        if record["schema"] != SCHEMA:
            raise ValueError(f"it has schema {record['schema']}; this version reads {SCHEMA}")
    return cast(Run, record)


def write_run(folder: Path, record: Run) -> None:
    """Replace the record of a run in one step, so that no reader sees half of it.

    One that says the same keeps its time, by which reports are known to be older.
    """
    text = json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    with suppress(OSError):
        if (folder / RUN).read_bytes() == text.encode():
            return
    with replacing(folder / RUN) as new:
        new.write(text.encode())


def record_in(folder: Path) -> Run | None:
    """Return the record of a folder, None of one without.

    Raises UserError for samples without a record: it is written first, so they are not ours. Also
    where the folder can never be made, so that a dry run says so too.
    """
    whole = folder.absolute()
    above = next(path for path in (whole, *whole.parents) if os.path.lexists(path))
    if not above.is_dir():
        raise UserError(f"{above} is not a folder; choose another --out.")
    if (folder / RUN).exists():
        return read_run(folder)
    samples = folder / SAMPLES
    if samples.exists() and samples.stat().st_size > 0:
        raise UserError(
            f"{folder} has a {SAMPLES} but no {RUN}, so it is not a run; choose another --out."
        )
    return None


def run_folders(out: Path | None, models: Sequence[str], *, several: bool) -> list[Path]:
    """Return the run folder of each model: ``out``, or for several models one inside it.

    Raises UserError where several models have no ``out``, or would share a folder, and for one
    model where ``out`` has the runs of several.
    """
    if not several:
        place = out or Path("results") / f"run-{models[0]}"
        if not (place / RUN).exists() and (inside := sorted(place.glob(f"*/{RUN}"))):
            raise UserError(
                f"{place} has the runs of other sweeps, as {inside[0].parent.name}; choose another"
                " --out."
            )
        return [place]
    if out is None:
        raise UserError("several models are measured: name the folder of their runs with --out.")
    for model in models:
        if models.count(model) > 1 or model == REPORTS:
            raise UserError(
                f"{out} has room for one folder called {model!r}: rename the folder of a model, or"
                " sweep it separately."
            )
    return [out / model for model in models]


def runs_in(places: Sequence[Path]) -> list[Path]:
    """Return the given runs, those directly inside other folders, and those in Parquet files.

    Other files and reports folders, which ``FOLDER/*`` includes, are ignored where there is a run;
    a place that does not exist is returned, for its error.
    """
    runs: list[Path] = []
    for place in places:
        is_run = (place / RUN).exists() or not place.exists()
        inside = sorted(path.parent for path in place.glob(f"*/{RUN}"))
        runs += parquet.runs_at(place) or ([place] if is_run else inside)
    return runs or list(places)


def to_parquet(folder: str | Path, file: str | Path) -> None:
    """Write all runs in and below a folder, records included, to one Parquet file.

    ``rw.frame``, ``rw.report`` and ``ropewalk report`` read the file as they read run folders, and
    ``FILE/NAME`` as one of its runs, or as those of one of its folders. Raises UserError for a
    folder without runs, and for a run without samples.
    """
    folder, file = Path(folder), Path(file)
    found = sorted(path.parent for path in folder.rglob(RUN))
    if not found:
        raise UserError(f"{folder} has no runs: no {RUN} is in it.")
    names = [run.relative_to(folder).as_posix() if run != folder else folder.name for run in found]
    runs = [(read_run(run), [*read_samples(run).values()]) for run in found]
    parquet.write(dict(zip(names, runs, strict=True)), file)
