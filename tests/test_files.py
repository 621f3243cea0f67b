"""Files: those from anyone are read with limits, ours are written whole, over nobody else's."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.files import open_regular, read_regular, replacing


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
def test_what_is_no_regular_file_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    path = Path("file")
    OTHERS[kind](path)
    with pytest.raises(OSError, match=kind):
        read_regular(path, limit=10)


def test_a_link_is_followed_where_asked_for(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", limit=4) == b"text"
    with pytest.raises(OSError, match="it is a symbolic link"):
        open_regular(tmp_path / "link", follow=False)


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="larger than 1 MiB"):
        read_regular(path, limit=2**20)
    with pytest.raises(OSError, match="larger than"):
        read_regular(Path("/proc/self/status"), limit=10)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_no_link_is_followed(link, tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    for name in ("table", "table.new"):
        link(tmp_path / "theirs", tmp_path / name)
    with replacing(tmp_path / "table") as new:
        new.write(b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "table").read_text() == "ours"
    assert not (tmp_path / "table").is_symlink()


def test_two_writers_of_one_file_both_succeed(tmp_path):
    """What a reader finds is whole at any moment: one writer's or the other's."""

    def write(letter: bytes) -> None:
        for _ in range(40):
            with replacing(tmp_path / "table") as new:
                new.write(letter * 5000)
                found = (tmp_path / "table").read_bytes()
                assert found in (b"a" * 5000, b"b" * 5000)
            written.append(letter)

    written: list[bytes] = []
    (tmp_path / "table").write_bytes(b"a" * 5000)
    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 80
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_what_a_kill_left_is_removed_by_the_next_writer(tmp_path):
    (tmp_path / ".ropewalk-0123456789abcdef.new").write_text("half")
    with replacing(tmp_path / "one") as one:
        with replacing(tmp_path / "other") as other:
            other.write(b"other")
        one.write(b"one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
