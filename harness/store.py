"""The run folder: ``run.json`` says what was asked, ``samples.jsonl`` holds what was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from harness.errors import UserError, reason

RUN, SAMPLES, LOCK = "run.json", "samples.jsonl", ".lock"
SCHEMA = 1
KEPT = ("ok", "not_finite")  # a sample of another status is measured again


@contextmanager
def writing(folder: Path) -> Iterator[TextIO]:
    """Hold the folder as its only writer and yield its samples file, open at the end.

    A torn last line, left by a kill, is cut off. Raises UserError while another process writes.
    """
    make_folder(folder, "run folder")
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        message = f"another process is writing {folder}; wait for it or choose another --out."
        raise UserError(message) from None
    try:
        _cut_torn_line(folder / SAMPLES)
        with (folder / SAMPLES).open("a", encoding="utf-8") as file:
            yield file
    finally:
        lock.release()


def make_folder(folder: Path, what: str = "folder") -> None:
    """Make a folder and those above it; raise UserError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{what} {folder} cannot be made: {error.strerror}."
        raise UserError(message) from None


def append(file: TextIO, record: Mapping[str, Any]) -> None:
    """Write one sample and see it on the disk before going on."""
    file.write(json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n")
    file.flush()
    os.fsync(file.fileno())


def read_samples(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the last record of every (cell key, question digest); a torn last line is left out.

    Raises UserError for a line that is broken in the middle of the file.
    """
    path = folder / SAMPLES
    if not path.exists():
        return {}
    samples = {}
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines[:-1], start=1):
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
    new = folder / f"{RUN}.new"
    with new.open("w", encoding="utf-8") as file:
        json.dump(record, file, indent=1, allow_nan=False, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / RUN)


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
