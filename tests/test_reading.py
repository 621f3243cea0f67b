"""Files that may come from anyone: of another kind, or without end, they are refused at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.files import open_regular, read_regular


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


OTHERS: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "No such device": _socket,
    "No such file": lambda path: path.symlink_to("absent"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_regular_file_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe is not waited for, a device not read; the error says what it is."""
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    path = Path("file")
    OTHERS[kind](path)
    with pytest.raises(OSError, match=kind):
        read_regular(path, limit=10)


def test_a_link_is_followed_where_asked_for(tmp_path: Path) -> None:
    """Model folders of the hub's cache are links; a record is none."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", limit=4) == b"text"
    with pytest.raises(OSError, match="it is a symbolic link"):
        open_regular(tmp_path / "link", follow=False)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """Neither one that says its size nor one that does not, as those of the system do."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="larger than 1 MiB"):
        read_regular(path, limit=2**20)
    with pytest.raises(OSError, match="larger than"):
        read_regular(Path("/proc/self/status"), limit=10)
