"""Write files and folders so that no reader sees half, and nothing of another is overwritten."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from harness.errors import UserError, why

UNFINISHED = ".ropewalk-*.new"


def make_folder(folder: Path, what: str = "folder") -> None:
    """Make a folder and those above it; raise UserError where that cannot be.

    An empty name, as of a variable that is not set, is not taken for the working folder.
    """
    if folder == Path():
        raise UserError(f"{what}: name a folder; for the working folder, write its path in full.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{what} {folder} cannot be made: {why(error)}.") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to, which takes the place of ``path`` once it is whole and on the disk.

    Its name until then is random, so that no link of that name can be prepared. Several may write
    the same path: each is whole, and the last one stays. Raises UserError where it cannot be
    written; what was there before then stays.
    """
    new = _beside(path)
    try:
        with _shared(path.parent), new.open("xb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                new.replace(path)
            finally:
                _remove(new)
        sync_names(path.parent)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {why(error)}.") from None


def is_free(place: Path) -> bool:
    """Return whether nothing is at a place but, in an empty folder, what a kill left unfinished."""
    if not place.is_dir():
        return not os.path.lexists(place)
    return all(fnmatch(path.name, UNFINISHED) for path in place.iterdir())


@contextmanager
def new_folder(place: Path, what: str = "folder") -> Iterator[Path]:
    """Yield a folder to fill, whose files are in ``place`` once all are whole and on the disk.

    An empty folder that is there already stays the same one, as it may be another file system.
    Raises UserError where it cannot be written; then nothing is left of it.
    """
    there = place.is_dir()
    home = place if there else place.absolute().parent
    make_folder(home, what)
    new = _beside(home / place.name)
    try:
        with _shared(home):
            try:
                new.mkdir()
                yield new
                for path in new.rglob("*"):
                    if path.is_file() and not path.is_symlink():
                        with path.open("rb") as file:
                            os.fsync(file.fileno())
                for path in sorted(new.iterdir()) if there else ():
                    path.rename(place / path.name)
                if not there:
                    new.rename(place)
            finally:
                _remove(new)
        sync_names(home)
    except UserError as error:
        raise UserError(str(error).replace(str(new), str(place))) from None
    except OSError as error:
        raise UserError(f"{what} {place} cannot be written: {why(error)}.") from None


def _beside(path: Path) -> Path:
    return path.with_name(UNFINISHED.replace("*", secrets.token_hex(8)))


def _remove(path: Path) -> None:
    """Remove a file or a folder where it is there and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink(missing_ok=True)


@contextmanager
def _shared(folder: Path) -> Iterator[None]:
    """Hold the folder as one of its writers; where there is no other, remove what a kill left."""
    place = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # another writes, or the file system has no locks of folders
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in folder.glob(UNFINISHED):
                _remove(left)
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
