"""Open and read files from any source: only regular files, of a bounded size."""

from __future__ import annotations

import errno
import math
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

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
    """Open a regular file as ``open`` does; any other kind is rejected without waiting for it.

    Without ``follow`` a symbolic link is rejected too. Raises OSError, whose ``strerror`` says why.
    """

    def opener(name: str, flags: int) -> int:
        links = 0 if follow else os.O_NOFOLLOW
        # A pipe that nobody writes to would be waited for without O_NONBLOCK.
        handle = os.open(name, flags | links | os.O_NONBLOCK, 0o666)
        found = stat.S_IFMT(os.fstat(handle).st_mode)
        if found != stat.S_IFREG:
            os.close(handle)
            why = f"it is {KINDS.get(found, 'something else')}, not a regular file"
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
    """Return a number of a foreign file of JSON; raise ValueError for NaN and what has no end."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number")
    return number
