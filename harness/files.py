"""Names of files, and files written so that no reader sees half of one."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import has_magic
from pathlib import Path
from typing import BinaryIO

from ropewalk.harness.errors import UserError, reason

UNNAMED = "name a folder; for the working folder, write its path in full"


def expanded(name: str) -> Path:
    """Return a path with its ``~`` expanded; that of an unknown user stays."""
    return Path(os.path.expanduser(name))  # noqa: PTH111


def is_path(path: Path) -> bool:
    """Return whether a file or a folder exists; what is too long for a name is none."""
    return os.path.exists(path)  # noqa: PTH110


def recorded(name: str) -> str:
    """Return what a record holds of a name: of a file, a folder or a glob, only its last part."""
    if name and (name[0] in "./~" or has_magic(name) or is_path(Path(name))):
        return Path(os.path.normpath(Path(name).absolute())).name
    return name


def make_folder(folder: Path, what: str = "folder") -> None:
    """Make a folder and its parents; raise UserError where that fails.

    An empty name, as of a variable that is not set, does not mean the working folder.
    """
    if folder == Path():
        raise UserError(f"{what}: {UNNAMED}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{what} {folder} cannot be made: {reason(error)}.") from None


def check_ours(file: Path, mark: str, flag: str) -> None:
    """Raise UserError for an existing file without the mark of the files that are written there."""
    if file.is_dir():
        raise UserError(f"{flag} {file} is a folder; name a file.")
    if file.exists() and mark.encode() not in file.read_bytes():
        raise UserError(f"{flag} {file} is there already and has other contents; name a new file.")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to, which replaces ``path`` once it is whole and on the disk.

    Several may write the same path: each file is whole, and the last one stays. Raises UserError
    where it cannot be written; the previous file then stays.
    """
    new = path.with_name(f".ropewalk-{secrets.token_hex(8)}.new")
    try:
        with new.open("xb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
        sync_names(path.parent)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {reason(error)}.") from None


@contextmanager
def new_folder(path: Path, what: str = "folder") -> Iterator[Path]:
    """Yield a folder to fill, which becomes ``path`` once its files are whole and on the disk.

    ``path`` is new, or an empty folder. Raises UserError where it cannot be written; then nothing
    is left of it.
    """
    new = path.absolute().with_name(f".{path.name}.new")
    make_folder(new.parent, what)
    shutil.rmtree(new, ignore_errors=True)  # a kill left it
    try:
        new.mkdir()
        yield new
        for file in new.rglob("*"):
            if file.is_file() and not file.is_symlink():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        new.rename(path)
        sync_names(new.parent)
    except UserError as error:
        raise UserError(str(error).replace(str(new), str(path))) from None
    except OSError as error:
        raise UserError(f"{what} {path} cannot be written: {reason(error)}.") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def sync_names(folder: Path) -> None:
    """Sync the names of a folder's files to the disk; synced contents alone may be lost."""
    with suppress(OSError):  # not every file system knows how
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
