"""The run folder: ``run.json`` says what was asked, ``samples.jsonl`` holds what was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from harness.errors import UserError, reason
from harness.replacing import make_folder, replacing, sync_names, why

RUN, SAMPLES, LOCK = "run.json", "samples.jsonl", ".lock"
SCHEMA = 1
KEPT = ("ok", "not_finite")  # a sample of another status is measured again


@contextmanager
def writing(folder: Path) -> Iterator[BinaryIO]:
    """Hold the folder as its only writer and yield its samples file, open at the end.

    A torn last line, left by a kill, is cut off. Raises UserError while another process writes,
    and where the folder cannot be written.
    """
    make_folder(folder, "run folder")
    # The system drops the lock with the process, whatever ends it: no stale lock after a reboot.
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
        _cut_torn_line(folder / SAMPLES)
        file = (folder / SAMPLES).open("ab", buffering=0)
    except Timeout:
        message = f"another process is writing {folder}; wait for it or choose another --out."
        raise UserError(message) from None
    except (OSError, NotImplementedError) as error:
        lock.release()
        message = f"run folder {folder} cannot be written: {why(error)}."
        raise UserError(message) from None
    try:
        with file:
            sync_names(folder)
            yield file
    finally:
        lock.release()


def append(file: BinaryIO, record: Mapping[str, Any]) -> None:
    """Write one sample and see it on the disk before going on.

    Raises UserError where it cannot be written (a full disk), and takes back what was.
    """
    line = (json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n").encode()
    end = file.seek(0, os.SEEK_END)
    try:
        while line:  # a disk that fills up takes a part
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            file.truncate(end)
        message = (
            f"{file.name} cannot be written: {why(error)}; what was measured before is kept, and "
            "the same command goes on."
        )
        raise UserError(message) from None


def read_samples(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the last record of every (cell key, question digest); a torn last line is left out.

    Raises UserError for a line that is broken in the middle of the file.
    """
    path = folder / SAMPLES
    if not path.exists():
        return {}
    samples = {}
    for number, line in enumerate(_whole(path.read_bytes()).split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
            samples[record["cell"], record["question"]] = record
        except (ValueError, KeyError, TypeError, RecursionError):
            message = f"{path}, line {number} is broken; take the line out to measure it again."
            raise UserError(message) from None
    return samples


def measured(samples: Mapping[tuple[str, str], Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the keys of the samples that need no second measurement."""
    return {key for key, record in samples.items() if record.get("status") in KEPT}


def read_run(folder: Path) -> dict[str, Any]:
    """Return the record of a run. Raises UserError where the folder holds none."""
    path = folder / RUN
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        message = f"{folder} is no run folder: it holds no {RUN}."
        raise UserError(message) from None
    except (ValueError, RecursionError, OSError) as error:
        message = f"{path} is no JSON: {reason(error)}."
        raise UserError(message) from None
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        message = f"{path} has schema {reason(repr(schema))}; this version reads {SCHEMA}."
        raise UserError(message)
    return dict(record)


def write_run(folder: Path, record: Mapping[str, Any]) -> None:
    """Replace the record of a run in one step, so that no reader sees half of it."""
    text = json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False)
    with replacing(folder / RUN) as new:
        new.write(f"{text}\n".encode())


def _whole(content: bytes) -> bytes:
    """Return the whole lines: those before a last one that a kill or a power cut left torn.

    Each line was on the disk before the next was begun, so no other can be; a power cut may leave
    the length of a line and not its letters.
    """
    end = content.rfind(b"\n") + 1
    last = content.rfind(b"\n", 0, max(end - 1, 0)) + 1
    try:
        json.loads(content[last:end] or b"{}")
    except (ValueError, RecursionError):
        end = last
    return content[:end]


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = len(_whole(content))
    if whole < len(content):
        with path.open("rb+") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
