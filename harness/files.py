"""Read foreign files within limits, and write files so that no reader sees half of one."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO, Literal

from ropewalk.harness.errors import UserError, why

MIB = 2**20
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(
    path: Path, mode: Literal["rb", "ab+"] = "rb", *, follow: bool = True, buffering: int = -1
) -> BinaryIO:
    """Open a regular file as ``open`` does; raise OSError for any other kind, without waiting.

    Without ``follow`` a symbolic link is rejected too. The ``strerror`` says why.
    """

    def opener(name: str, flags: int) -> int:
        links = 0 if follow else os.O_NOFOLLOW
        # A pipe that nobody writes to would be waited for without O_NONBLOCK.
        handle = os.open(name, flags | links | os.O_NONBLOCK, 0o666)
        kind = stat.S_IFMT(os.fstat(handle).st_mode)
        if kind != stat.S_IFREG:
            os.close(handle)
            why = f"it is {KINDS.get(kind, 'something else')}, not a regular file"
            raise OSError(errno.EINVAL, why, name)
        return handle

    try:
        return open(path, mode, buffering, opener=opener)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink() and not follow:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise


def read_regular(path: Path, *, limit: int, follow: bool = True) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes.

    Raises OSError as ``open_regular`` does, and for a larger file without reading all of it.
    """
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > limit else file.read(size + 1)
        if len(content) > size:  # it grows, or does not say how large it is
            content += file.read(limit + 1 - len(content))
    if max(size, len(content)) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit / MIB:,.4g} MiB", str(path))
    return content


def finite(text: str) -> float:
    """Return a number of a foreign JSON file; raise ValueError for NaN and infinities."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number")
    return number


UNFINISHED = ".ropewalk-*.new"


def make_folder(folder: Path, what: str = "folder") -> None:
    """Make a folder and its parents; raise UserError where that fails.

    An empty name, as of a variable that is not set, does not mean the working folder.
    """
    if folder == Path():
        raise UserError(f"{what}: name a folder; for the working folder, write its path in full.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{what} {folder} cannot be made: {why(error)}.") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to, which replaces ``path`` once it is whole and on the disk.

    Its name until then is random, so that no link of that name can be prepared. Several may write
    the same path: each is whole, and the last one stays. Raises UserError where it cannot be
    written; the previous file then stays.
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
    """Return whether a place is unused, or a folder with nothing but what a kill left."""
    if not place.is_dir():
        return not os.path.lexists(place)
    return all(fnmatch(path.name, UNFINISHED) for path in place.iterdir())


@contextmanager
def new_folder(place: Path, what: str = "folder") -> Iterator[Path]:
    """Yield a folder to fill, whose files are in ``place`` once all are whole and on the disk.

    An empty folder that exists is kept, as it may be another file system. Raises UserError where
    it cannot be written; then nothing is left of it.
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
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink(missing_ok=True)


@contextmanager
def _shared(folder: Path) -> Iterator[None]:
    """Lock the folder as one of its writers; a sole writer removes what a kill left."""
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
