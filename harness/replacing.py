"""Write a file so that no reader sees half of it, and no file of another is overwritten."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from harness.errors import UserError, why

UNFINISHED = ".ropewalk-*.new"


def make_folder(folder: Path, what: str = "folder") -> None:
    """Make a folder and those above it; raise UserError where that cannot be.

    An empty name, as of a variable that is not set, is not taken for the working folder.
    """
    if folder == Path():
        message = f"{what}: name a folder; for the working folder, write its path in full."
        raise UserError(message)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        message = f"{what} {folder} cannot be made: {why(error)}."
        raise UserError(message) from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to, which takes the place of ``path`` once it is whole and on the disk.

    Its name until then is random, so that no link of that name can be prepared. Several may write
    the same path: each is whole, and the last one stays. Raises UserError where it cannot be
    written; what was there before then stays.
    """
    new = path.with_name(UNFINISHED.replace("*", secrets.token_hex(8)))
    try:
        with _shared(path.parent), new.open("xb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                new.replace(path)
            finally:
                with suppress(OSError):
                    new.unlink(missing_ok=True)
        sync_names(path.parent)
    except OSError as error:
        message = f"{path} cannot be written: {why(error)}."
        raise UserError(message) from None


@contextmanager
def _shared(folder: Path) -> Iterator[None]:
    """Hold the folder as one of its writers; where there is no other, remove what a kill left."""
    place = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # another writes, or the file system has no locks of folders
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in folder.glob(UNFINISHED):
                left.unlink(missing_ok=True)
        with suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_SH)
        yield
    finally:
        os.close(place)


def sync_names(folder: Path) -> None:
    """Sync the names of a folder's files to the disk; synced contents alone may be lost."""
    with suppress(OSError):  # not every file system knows how
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
