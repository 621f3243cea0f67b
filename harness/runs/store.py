"""Read and write a run folder: ``run.json`` is its record, ``samples.jsonl`` its samples.

The samples are also read where they are compressed (``samples.jsonl.gz``), and whole runs in a
Parquet file, where the path of a run is ``FILE.parquet/NAME``.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic_core import from_json

from ropewalk.harness.errors import UserError, foreign, reason, why
from ropewalk.harness.files import (
    MIB,
    finite,
    make_folder,
    open_regular,
    read_regular,
    replacing,
    sync_names,
)
from ropewalk.harness.runs import parquet
from ropewalk.harness.runs.compatible import NAMES, PROTOCOLS, SEEDS, differing
from ropewalk.harness.runs.record import LINE, check_run, check_sample

RUN, SAMPLES, COMPRESSED = "run.json", "samples.jsonl", "samples.jsonl.gz"
LARGEST = 2**33  # bytes of a samples file
LARGEST_RUN = 2**28  # bytes of a record
SCHEMA = 1
KEPT = ("ok", "not_finite", "too_long")  # a sample of another status is measured again


Key = tuple[str, str]  # a cell's key and a question's digest
Outcome = Mapping[str, Any]  # of a sample: status and reason
OK: Outcome = {"status": "ok"}


@dataclass
class Samples:
    """The samples file of a run, locked by its only writer."""

    path: Path
    file: BinaryIO

    @property
    def state(self) -> object:
        """A value that differs once anything else has written the file, or replaced it."""
        status = os.fstat(self.file.fileno())
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def writing(folder: Path) -> Iterator[Samples]:
    """Lock the samples file of a folder and yield it, open at the end.

    An incomplete last line, left by a kill, is cut off; compressed samples are unpacked. Raises
    UserError while another process writes, and where the file cannot be written or is a link, a
    pipe or a device.
    """
    make_folder(folder, "run folder")
    path = folder / SAMPLES
    with ExitStack() as stack:
        try:
            _unpack(folder)
            file = stack.enter_context(open_regular(path, "ab+", follow=False, buffering=0))
            _lock(file)
            _cut_torn_line(file)
        except BlockingIOError:
            raise UserError(
                f"another process is writing {folder}; wait for it or choose another --out."
            ) from None
        except OSError as error:
            raise UserError(
                f"run folder {folder} cannot be written: {SAMPLES}: {why(error)}."
            ) from None
        sync_names(folder)
        yield Samples(path, file)


def _lock(file: BinaryIO) -> None:
    """Lock a samples file; the system releases the lock when the process ends, in any way."""
    if os.fstat(file.fileno()).st_nlink > 1:
        raise OSError(errno.EMLINK, "it has a second name (a hard link)")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def append(samples: Samples, record: Mapping[str, Any]) -> None:
    """Write one sample and sync it to the disk.

    Raises UserError where it cannot be written (a full disk), and removes the part that was; and
    where the file is no longer what this process wrote (``check_intact``).
    """
    line = (json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n").encode()
    check_intact(samples)
    file = samples.file
    end = file.tell()
    try:
        while line:  # a disk that fills up writes a part
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            file.truncate(end)
        raise UserError(
            f"{samples.path} cannot be written: {why(error)}; everything measured before is kept, "
            "and the same command continues."
        ) from None


def check_intact(samples: Samples) -> None:
    """Raise UserError where someone removed, emptied, replaced or changed the file."""
    status = os.fstat(samples.file.fileno())
    try:
        intact = os.path.samestat(status, samples.path.lstat())
    except OSError:
        intact = False
    if not intact or status.st_size != samples.file.tell():
        raise UserError(
            f"{samples.path} was removed, emptied or replaced while this run wrote it; the same "
            "command measures what is missing."
        )


def _stored(folder: Path) -> Path:
    """Return the file that holds the samples; a compressed one counts where no other has any."""
    path, compressed = folder / SAMPLES, folder / COMPRESSED
    with suppress(OSError):  # a folder that cannot be looked into is named by who opens the file
        begun = path.exists() and path.stat().st_size > 0
        return compressed if compressed.exists() and not begun else path
    return path


def _unpack(folder: Path) -> None:
    """Replace compressed samples by their content."""
    path = _stored(folder)
    if path.name != COMPRESSED:
        return
    with (
        replacing(folder / SAMPLES) as new,
        foreign(f"{path} cannot be unpacked"),
        open_regular(path, follow=False) as file,
        gzip.open(file) as content,
    ):
        while block := content.read(MIB):
            if new.tell() > LARGEST:
                raise _too_large(path)
            new.write(block)
    path.unlink()


def _too_large(path: Path) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {LARGEST / MIB:,.0f} MiB", str(path))


def read_samples(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the last record of every (cell key, question digest), as ``each_sample`` reads them.

    A file of many samples with losses takes some twenty times its size in memory.
    """
    return {(record["cell"], record["question"]): record for record in each_sample(folder)}


def each_sample(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the record of every line of the samples, without an incomplete last one.

    The last of one cell key and question digest counts. Raises UserError for a line that is broken
    in the middle of the file.
    """
    if parquet.runs_at(folder) == [folder]:
        yield from parquet.samples_of(folder)
        return
    path = _stored(folder)
    try:
        with open_regular(path, follow=False, buffering=MIB) as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise _too_large(path)
            if path.name == COMPRESSED:
                with gzip.open(file) as content:
                    yield from _records(cast(BinaryIO, content), path)
            else:
                yield from _records(file, path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {why(error)}.") from None


def _records(file: BinaryIO, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the record of each line, but of a last one that a kill or a power cut left incomplete.

    Each line was on the disk before the next was written, so no other can be incomplete; a power
    cut may leave the length of a line without its characters.
    """
    size = 0
    for number, line in enumerate(iter(partial(file.readline, LINE + 1), b""), start=1):
        size += len(line)
        if size > LARGEST:  # of a compressed file
            raise _too_large(path)
        if len(line) <= LINE and not line.endswith(b"\n"):
            return
        try:
            record = _loaded(line)
            record["cell"], record["question"]
        except (ValueError, KeyError, TypeError) as error:
            cut = isinstance(error, ValueError) and len(line) <= LINE
            after = file.readline(LINE + 1) if cut else b"\n"
            if len(after) <= LINE and not after.endswith(b"\n"):
                return
            raise UserError(
                f"{path}, line {number} is broken; take the line out to measure it again."
            ) from None
        yield record


def checked_run(folder: Path) -> dict[str, Any]:
    """Return the record of a run; raise UserError where it is damaged."""
    record = read_run(folder)
    check_run(str(folder / RUN), record)
    return record


def checked_samples(folder: Path) -> dict[Key, dict[str, Any]]:
    """Return the samples of a run as ``read_samples`` does; raise UserError for a damaged one."""
    return {(record["cell"], record["question"]): record for record in each_checked(folder)}


def each_checked(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the samples of a run as ``each_sample`` does; raise UserError for a damaged one."""
    file = str(folder / SAMPLES)
    for record in each_sample(folder):
        check_sample(file, record)
        yield record


def outcomes(folder: Path) -> dict[Key, Outcome]:
    """Return of every sample of a run what became of it, without its numbers."""
    return {
        (record["cell"], record["question"]): outcome(record) for record in each_checked(folder)
    }


def outcome(record: Mapping[str, Any]) -> Outcome:
    """Return what became of a sample: its status, and the reason of one without a number."""
    if record["status"] == "ok":
        return OK
    return {"status": record["status"], "reason": record.get("reason")}


def measured(samples: Mapping[tuple[str, str], Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the keys of the samples that need not be measured again."""
    return {key for key, record in samples.items() if record.get("status") in KEPT}


def read_run(folder: Path) -> dict[str, Any]:
    """Return the record of a run; raise UserError if the folder has no record."""
    path = folder / RUN
    try:
        if parquet.runs_at(folder) == [folder]:
            text = parquet.record_of(folder)
        else:
            text = read_regular(path, limit=LARGEST_RUN, follow=False).decode()
        record = json.loads(text, parse_float=finite, parse_constant=finite)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} is not a run folder: it has no {RUN}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {why(error)}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {reason(error)}.") from None
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise UserError(f"{path} has schema {reason(repr(schema))}; this version reads {SCHEMA}.")
    return dict(record)


def write_run(folder: Path, record: Mapping[str, Any]) -> None:
    """Replace the record of a run in one step, so that no reader sees half of it."""
    text = json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False)
    with replacing(folder / RUN) as new:
        new.write(f"{text}\n".encode(errors="backslashreplace"))  # as JSON has half a letter


def _whole(content: bytes) -> bytes:
    """Return the complete lines, as ``_records`` reads them."""
    end = content.rfind(b"\n") + 1
    last = content.rfind(b"\n", 0, max(end - 1, 0)) + 1
    try:
        _loaded(content[last:end] or b"{}")
    except ValueError:
        end = last
    return content[:end]


def _loaded(line: bytes) -> Any:
    if len(line) > LINE:
        raise ValueError("longer than any line of a run")
    return from_json(line)


def _cut_torn_line(file: BinaryIO) -> None:
    end = file.seek(0, os.SEEK_END)
    start = file.seek(max(0, end - LINE))
    whole = start + len(_whole(file.read()))
    if whole < end:
        file.truncate(whole)
        os.fsync(file.fileno())
    file.seek(whole)


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
    names = {run: run.relative_to(folder if run != folder else run.parent) for run in found}
    parquet.write(
        {
            name.as_posix(): (checked_run(run), list(checked_samples(run).values()))
            for run, name in names.items()
        },
        file,
    )


REPORTS = "reports"  # of all models together, beside their folders
Record = Mapping[str, Any]


def run_folders(out: Path | None, records: Sequence[Record], *, several: bool) -> list[Path]:
    """Return the run folder of each model's record; for several models, inside ``out``.

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
                " sweep it separately."
            )
    return [out / model for model in models]


def default_folder(record: Record) -> Path:
    """Return results/run-MODEL; where that is another sweep's, the next free number of it.

    The same sweep, or one that contains it, uses the same folder.
    """
    for number in count(1):
        name = f"run-{record['model']['name']}" + (f"-{number}" if number > 1 else "")
        folder = Path("results") / name
        before = record_in(folder)
        if before is None or (
            requests_of(before) <= requests_of(record)
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
        there, samples = (folder / RUN).exists(), _stored(folder)
        others = not there and samples.exists() and samples.stat().st_size > 0
    except OSError:
        there = others = False
    if others:
        raise UserError(
            f"{folder} has a {samples.name} but no {RUN}, so it is not a run; choose another --out."
        )
    return checked_run(folder) if there else None


def requests_of(record: Record) -> set[tuple[str, str, str]]:
    """Return every question of every cell of a record, with its method."""
    return {
        (cell["scaling"], cell["key"], question)
        for cell in record["cells"]
        for question in record["tasks"][cell["task"]]["questions"][str(cell["length"])]
    }


def check_same_sweep(folder: Path, old: Record, new: Record) -> None:
    """Raise UserError where the record of another model, or another sweep, would be replaced.

    The same sweep may have more cells than before, or fewer.
    """
    if key := other_model(old, new):
        model = old["model"]
        raise UserError(
            f"the run folder holds a run of model {model['name']} ({key}: {model[key]}, now "
            f"{new['model'].get(key)}); choose another --out."
        )
    if setting := next(_other_question(old, new), None):
        raise UserError(f"{folder} has another sweep, with other {setting}; choose another --out.")


def other_model(old: Record, new: Record) -> str | None:
    """Return a field of the model that two records have differently; None where none is.

    Attention is recorded where it was not left to PyTorch.
    """
    left = {"compiled": False, "attention": "auto"}
    before, model = {**left, **old["model"]}, {**left, **new["model"]}
    return next((key for key, one in before.items() if one != model.get(key)), None)


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
    """Return the runs among the given folders, directly inside them, and in Parquet files.

    Other files and reports folders, which ``FOLDER/*`` includes, are ignored where there is a run;
    a place that does not exist is returned, for its error.
    """
    folders = [
        parquet.runs_at(place)
        or (
            sorted(path.parent for path in (*place.glob(RUN), *place.glob(f"*/{RUN}")))
            if place.exists()
            else [place]
        )
        for place in places
    ]
    return [run for runs in folders for run in runs] or list(places)
